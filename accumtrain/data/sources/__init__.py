"""The data sources: built-in images, CIFAR, class folders, tables, arrays, TFRecord files, tensorflow-datasets.

Each opens its configuration of `data/config.py` as a `Source`. `targets`, `shards` and `record_index` serve several;
those whose names begin with `table` serve data=table.
"""
