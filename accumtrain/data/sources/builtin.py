"""data=digits, which ship with accumtrain, and data=synthetic, which is generated."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DigitsConfig, SyntheticConfig
from accumtrain.data.source import ArraySplit, Source, Split, Wanted
from accumtrain.data.stream import NOISE, PATTERN, hash64, random64, random_below
from accumtrain.errors import ConfigError

Arrays = tuple[np.ndarray, np.ndarray]


# ---- the UCI optical digits: 1,797 images of 8 x 8 pixels (see digits/ATTRIBUTION.txt) ----


_NUM_CLASSES = 10
_TEST_EXAMPLES = 360


def open_digits(config: DigitsConfig, wanted: Wanted) -> Source:
    """Return 1,437 training and 360 test examples, as `load_digits` splits them."""
    train, held_out = (ArraySplit(images, labels, config.WHITE) for images, labels in load_digits())
    return Source(train, held_out, _NUM_CLASSES)


def load_digits() -> tuple[Arrays, Arrays]:
    """Return images, uint8 [N, 8, 8, 1] of values 0 to 16, and labels, [N], of 1,437 training and 360 test examples.

    The split is fixed: the test examples are 360 evenly spaced ones of all examples, sorted by label. So every class
    has its share of them, to within one or two examples.
    """
    with np.load(Path(__file__).with_name("digits") / "digits.npz", allow_pickle=False) as file:
        images, labels = file["images"][..., None], file["labels"]  # [1797, 8, 8, 1], [1797]
    rank = np.empty(len(labels), np.int64)
    rank[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    test = (rank + 1) * _TEST_EXAMPLES // len(labels) > rank * _TEST_EXAMPLES // len(labels)
    return (images[~test], labels[~test]), (images[test], labels[test])


# ---- generated images of any shape, with any number of classes that a network can learn to tell apart ----


_GRID = 4  # a class is a coarse grid of random grey values


class SyntheticSplit(Split):
    """Example i has label i % num_classes. A pixel is the mean of a cell of its class's grid and of uniform noise."""

    def __init__(self, size: int, shape: tuple[int, int, int], num_classes: int, seed: int, first: int) -> None:
        self.size = size
        self.shape = self._shape = shape
        self.channels = shape[-1]
        self._num_classes = num_classes
        self._seed = seed
        self._first = first

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        index += self._first
        label = index % self._num_classes
        image = _half(self._pattern(label)) + _half(self._noise(index))
        return image, tf.cast(label, tf.int32)

    def _pattern(self, label: tf.Tensor) -> tf.Tensor:
        height, width, channels = self._shape
        cell = tf.range(_GRID * _GRID * channels, dtype=tf.int64)
        grid = tf.cast(random_below(256, hash64(PATTERN, self._seed, label)[:, None], cell), tf.uint8)
        grid = tf.reshape(grid, [-1, _GRID, _GRID, channels])  # [n, 4, 4, channels]
        rows, columns = tf.range(height) * _GRID // height, tf.range(width) * _GRID // width
        return tf.gather(tf.gather(grid, rows, axis=1), columns, axis=2)  # [n, height, width, channels]

    def _noise(self, index: tf.Tensor) -> tf.Tensor:
        pixels = math.prod(self._shape)
        word = tf.range(-(-pixels // 8), dtype=tf.int64)
        octets = tf.bitcast(random64(hash64(NOISE, self._seed, index)[:, None], word), tf.uint8)  # [n, words, 8]
        return tf.reshape(tf.reshape(octets, [tf.size(index), -1])[:, :pixels], [-1, *self._shape])


def open_synthetic(config: SyntheticConfig, wanted: Wanted) -> Source:
    """Return training and test examples, all different. Raise ConfigError without an image size."""
    if config.pixels is None:
        raise ConfigError("data=synthetic has no images of its own: set data.image_size, for example to 32")
    shape = (*config.pixels, config.channels)
    train = SyntheticSplit(config.train_examples, shape, config.num_classes, wanted.seed, first=0)
    test = SyntheticSplit(config.test_examples, shape, config.num_classes, wanted.seed, first=config.train_examples)
    return Source(train, test, config.num_classes)


def _half(octets: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(octets, tf.constant(1, tf.uint8))
