"""Train with the batch you want on the memory you have."""

__version__ = "0.1.0"
