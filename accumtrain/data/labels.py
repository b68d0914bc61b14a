"""The labels of a whole split, read once: for class weights and for balanced sampling."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.data.resident import resident
from accumtrain.data.source import Split

_CHUNK = 1024


def labels_of(split: Split) -> np.ndarray:
    """The label of every example, int32 [size]. The first call reads the split, record files from end to end.

    Raises:
        DataError: an example can't be read.
    """
    if split.known_labels is None:
        split.known_labels = _read_labels(resident(split))
    return split.known_labels


def class_counts(split: Split, num_classes: int) -> list[int]:
    """How many examples of each class a split holds."""
    counts: list[int] = np.bincount(labels_of(split), minlength=num_classes).tolist()
    return counts


def _read_labels(split: Split) -> np.ndarray:
    def read(start: tf.Tensor) -> tf.Tensor:
        return split.read(tf.range(start, tf.minimum(start + _CHUNK, split.size)))[1]

    chunks = tf.data.Dataset.range(0, split.size, _CHUNK).map(read)
    return np.concatenate(list(chunks.as_numpy_iterator()))
