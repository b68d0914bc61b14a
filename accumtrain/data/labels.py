"""The labels of a whole split, read once: for class weights and for balanced sampling."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.data.source import Split

UNREADABLE = -1  # in the place of the label of an example that can't be read, if data.on_error leaves it out
_CHUNK = 1024


def labels_of(split: Split) -> np.ndarray:
    """The label of every example, int32 [size]. The first call reads the split, record files from end to end.

    Raises:
        tf.errors.OpError: an example can't be read; `planning.tensorflow_errors.in_user_words` says which.
    """
    if split.known_labels is None:
        split.known_labels = _read_labels(split)
    return split.known_labels


def class_counts(split: Split, num_classes: int) -> list[int]:
    """How many examples of each class a split holds that can be read."""
    labels = labels_of(split)
    counts: list[int] = np.bincount(labels[labels != UNREADABLE], minlength=num_classes).tolist()
    return counts


def _read_labels(split: Split) -> np.ndarray:
    def read(start: tf.Tensor) -> tf.Tensor:
        image, label = split.read(tf.range(start, tf.minimum(start + _CHUNK, split.size)))
        # of an example that is left out there is no image
        return tf.where(image == b"", UNREADABLE, label) if image.dtype == tf.string else label

    chunks = tf.data.Dataset.range(0, split.size, _CHUNK).map(read)
    return np.concatenate(list(chunks.as_numpy_iterator()))
