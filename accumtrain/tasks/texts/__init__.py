"""Tasks that learn tokens of texts: masked ones, or the next."""
