"""Examples: where they come from, in which order, and how they become batches.

`open_data` opens the source that a configuration names, `source` says what a source and a data set are, and `sources/`
has one file for each. `inputs/` has the kinds of inputs. `stream` decides the order of the examples, and `pipeline`
makes batches of them. `checking/` reads everything once.
"""
