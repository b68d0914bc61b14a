"""The data sources: built-in images, CIFAR, class folders, arrays, texts; records in a room of their own.

Each opens its configuration of `data/config.py` as a `Source`. data=table has a room of its own, too.
"""
