"""A trained run: it is loaded, evaluated, asked."""
