"""A part of a split, such as the examples that are held out of the training split to validate on."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.data.bad_example import BadExample
from accumtrain.data.source import Split

_SEED = 0  # of the choice: the same for every run.seed, so that runs are compared on the same examples


class Part(Split):
    """Some examples of a split.

    Args:
        whole: the split.
        chosen: int64 [size], indices of the examples in it, increasing.
    """

    def __init__(self, whole: Split, chosen: np.ndarray) -> None:
        self.size, self.image_shape = len(chosen), whole.image_shape
        self.channels, self.white = whole.channels, whole.white
        self.known_labels = None if whole.known_labels is None else whole.known_labels[chosen]
        self._whole, self._chosen = whole, chosen
        with tf.device("CPU"):
            self._indices = tf.constant(chosen, tf.int64)

    @property
    def skipped(self) -> dict[int, BadExample]:
        left_out = self._whole.skipped
        places = np.flatnonzero(np.isin(self._chosen, list(left_out))).tolist()
        return {place: left_out[int(self._chosen[place])] for place in places}

    @property
    def whole(self) -> Split:
        return self._whole

    def in_whole(self, index: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._indices, index)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._whole.read(self.in_whole(index))

    def weights(self, index: tf.Tensor) -> tf.Tensor:
        return self._whole.weights(self.in_whole(index))


def held_out_of(size: int, fraction: float) -> int:
    """How many of `size` examples are held out: round(size * fraction), at least one, but never all."""
    return min(max(round(size * fraction), 1), size - 1)


def hold_out(split: Split, fraction: float) -> tuple[Part, Part]:
    """The examples that are left, and those that are held out: a share of each class, drawn at random.

    Where the labels are not known before the examples are read, they are drawn from all examples.
    """
    draw = np.random.default_rng(_SEED)
    labels = np.zeros(split.size, np.int64) if split.known_labels is None else split.known_labels
    held = np.zeros(split.size, bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held[draw.permutation(members)[: held_out_of(len(members), fraction)]] = True
    return Part(split, np.flatnonzero(~held)), Part(split, np.flatnonzero(held))
