"""The data sources of records: TFRecord files and tensorflow-datasets, with their shards and index."""
