"""A source of examples: two splits, each of which returns images and labels by example index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from accumtrain.data.preprocess import Preprocess


class Split(ABC):
    """A fixed number of examples, addressed by index.

    Attributes:
        size: Number of examples.
        image_shape: [height, width, channels] of the stored images; None if they may differ.
        channels: 1 or 3.
        white: The value of a uint8 pixel that means 1.0.
    """

    size: int
    image_shape: tuple[int, int, int] | None
    channels: int
    white: int = 255

    @abstractmethod
    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Images and labels, int32 [n], of the examples `index`, int64 [n]; called in graphs.

        Images are uint8 (0..white) or float32 (0..1) [n, height, width, channels]; those of an EncodedSplit are string
        [n].
        """


class ArraySplit(Split):
    """A split of arrays in memory.

    Args:
        images: [size, height, width, channels]: floats 0..1, which are stored as float32, or integers 0..white, which
            are stored as uint8.
        labels: [size], integers.
        white: The value of an integer pixel that means 1.0.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, white: int = 255) -> None:
        self.size = len(images)
        self.image_shape = images.shape[1:]
        self.channels = images.shape[-1]
        self.white = white
        with tf.device("CPU"):
            self._images = tf.constant(images, tf.float32 if images.dtype.kind == "f" else tf.uint8)
            self._labels = tf.constant(labels, tf.int32)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(self._images, index), tf.gather(self._labels, index)


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes:
        train: The examples to train on.
        test: The examples to evaluate on.
        num_classes: Labels are 0..num_classes-1.
        notes: What the user should know about the source, one line each.
    """

    train: Split
    test: Split
    num_classes: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Data:
    """An opened data set: a source with its preprocessing.

    Attributes:
        train: The examples to train on.
        test: The examples to evaluate on.
        num_classes: Labels are 0..num_classes-1.
        image_shape: [height, width, channels] of the images in a batch.
        preprocess: From stored images to the images in a batch.
        notes: What the user should know about the source, one line each.
    """

    train: Split
    test: Split
    num_classes: int
    image_shape: tuple[int, int, int]
    preprocess: Preprocess
    notes: list[str] = field(default_factory=list)
