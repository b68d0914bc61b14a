"""Finds the file behind a TensorFlow error that a running pipeline has raised."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.source import Data
from accumtrain.errors import DataError


def explain_input_error(error: tf.errors.OpError, data: Data) -> DataError | None:
    """The DataError behind an error raised while iterating over batches of `data`; None if it has another cause.

    It decodes the examples read last again, which takes some seconds for large images.
    """
    if isinstance(error, (tf.errors.ResourceExhaustedError, tf.errors.CancelledError)):
        return None
    for split in data.whole_splits.values():
        if isinstance(split, EncodedSplit):
            try:
                split.inspect_recent()
            except DataError as found:
                return found
    return None
