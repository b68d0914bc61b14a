"""Generated images of any shape, with any number of classes that a network can learn to tell apart."""

from __future__ import annotations

import math

import tensorflow as tf

from accumtrain.data.source import Source, Split
from accumtrain.data.stream import NOISE, PATTERN, hash64, random64, random_below
from accumtrain.errors import ConfigError
from accumtrain.kinds.sources import SyntheticConfig

# A class is a coarse grid of random grey values.
_GRID = 4


class SyntheticSplit(Split):
    """Example i has label i % num_classes. A pixel is the mean of a cell of its class's grid and of uniform noise."""

    def __init__(self, size: int, image_shape: tuple[int, int, int], num_classes: int, seed: int, first: int) -> None:
        self.size = size
        self.image_shape = self._shape = image_shape
        self.channels = image_shape[-1]
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


def open_synthetic(config: SyntheticConfig, seed: int) -> Source:
    """Training and test examples, all different. Raises ConfigError without an image size."""
    if config.pixels is None:
        raise ConfigError("data=synthetic has no images of its own: set data.image_size, for example to 32")
    shape = (*config.pixels, config.channels)
    train = SyntheticSplit(config.train_examples, shape, config.num_classes, seed, first=0)
    test = SyntheticSplit(config.test_examples, shape, config.num_classes, seed, first=config.train_examples)
    return Source(train, test, config.num_classes)


def _half(octets: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(octets, tf.constant(1, tf.uint8))
