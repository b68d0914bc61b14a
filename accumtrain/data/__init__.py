"""Examples: where they come from, in which order, and how they become batches.

`open_data` opens the source that a configuration names, `source` says what a source and a data set are, and `sources/`
has one file for each. `stream` decides the order of the examples, `preprocess`, `augment` and `randaugment` the pixels,
and `pipeline` makes batches of them. `check` reads everything once.
"""
