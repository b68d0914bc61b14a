"""Published transformers once more, in NumPy and float64, straight from their files: what job=verify compares with."""
