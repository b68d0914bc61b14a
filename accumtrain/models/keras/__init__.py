"""Keras's own models as segments."""
