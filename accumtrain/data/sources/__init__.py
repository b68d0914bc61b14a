"""The data sources: built-in images, CIFAR, class folders, arrays, TFRecord files, tensorflow-datasets.

Each opens its configuration of `data/config.py` as a `Source`. `targets`, `shards` and `record_index` serve several;
data=table has a room of its own.
"""
