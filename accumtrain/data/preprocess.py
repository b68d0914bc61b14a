"""From stored images to the images in a batch: decode, resize, augment, normalise.

Stored pixels are uint8, 0..white, or float32, 0..1. They become float32, 0..1, then (x - mean) / std. Work that must be
done image by image (decoding, windows of different sizes) is in `example`; work on whole batches is in `batch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.data.images import augment
from accumtrain.data.images.decode import central_window, cut_window, decode, decode_window
from accumtrain.data.images.randaugment import randaugment
from accumtrain.errors import ConfigError
from accumtrain.fields import format_value


@dataclass(frozen=True)
class Preprocess:
    """The preprocessing of a data set, with keys as in DataConfig.

    `image_size`: height and width; None keeps the stored size.
    `white`: the pixel value of 1.0.
    """

    augment: str
    image_size: tuple[int, int] | None
    mean: list[float]
    std: list[float]
    white: int
    jitter: float = 0.0
    randaugment: int = 0
    magnitude: float = 0.0
    erasing: float = 0.0

    def by_example(self, training: bool) -> bool:
        """Return whether images must pass through `example` even if they need no decoding."""
        return self.augment == "inception" or (training and self._changes_single_images)

    @property
    def _changes_single_images(self) -> bool:
        return self.jitter > 0 or self.randaugment > 0

    def example(
        self, image: tf.Tensor, key: tf.Tensor, orientation: tf.Tensor | None = None, *, channels: int, training: bool
    ) -> tf.Tensor:
        """Prepare one image: an encoded string [] with its EXIF orientation, or pixels [height, width, channels].

        Returns:
            Pixels [height, width, channels] of the final size: uint8 0..white if the image was only decoded, else
            float32 0..1.
        """
        encoded = image.dtype == tf.string
        if self.augment == "inception":
            window_of = partial(augment.random_window, key=key) if training else central_window
            image = decode_window(image, channels, window_of, orientation) if encoded else cut_window(image, window_of)
            image = self._resize(image, antialias=False)
            image = augment.random_colour(augment.random_flip(image, key), key) if training else image
        else:
            image = decode(image, channels, orientation) if encoded else image
            image = image if self.image_size is None else self._resize(image)
        return self._change_colours(image, key, channels) if training and self._changes_single_images else image

    def _change_colours(self, image: tf.Tensor, key: tf.Tensor, channels: int) -> tf.Tensor:
        """Return the image, float32 0..1, after colour jitter and RandAugment."""
        if image.dtype == tf.uint8:
            image = tf.cast(image, tf.float32) / self.white
        if self.jitter:
            image = augment.random_jitter(image, key, self.jitter)
        fill = np.resize(np.array(self.mean, np.float32), channels)
        return randaugment(image, key, self.randaugment, self.magnitude / 10, fill)

    def batch(self, images: tf.Tensor, key: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Prepare images [n, height, width, channels] with keys uint64 [n]: normalised float32 of the final size."""
        if self.image_size is not None:
            images = self._resize(images)
        elif images.dtype == tf.uint8:
            images = tf.cast(images, tf.float32) / self.white
        if training and self.augment == "shift":  # before normalising: the padding is black
            images = augment.random_crop(images, key, padding=1, flip=False)
        images = self._normalise(images)
        if training and self.augment == "crop_flip":  # after it: the padding is the mean, as in He et al.
            images = augment.random_crop(images, key, padding=4, flip=True)
        return augment.random_erasing(images, key, self.erasing) if training and self.erasing else images

    def _normalise(self, images: tf.Tensor) -> tf.Tensor:
        """Return (x - mean) / std, on whole rows of pixels: kernels are slow with an operand of three numbers."""
        _, height, width, channels = images.shape
        rows = tf.reshape(images, [-1, width * channels])
        mean, std = (np.resize(np.array(value, np.float32), width * channels) for value in (self.mean, self.std))
        return tf.reshape((rows - mean) / std, [-1, height, width, channels])

    def _resize(self, images: tf.Tensor, *, antialias: bool = True) -> tf.Tensor:
        """Resize to float32 0..1. Images of the final size keep their pixels, so resizing twice does no harm."""
        resized = tf.image.resize(images, self.image_size, antialias=antialias)
        return resized / self.white if images.dtype == tf.uint8 else resized


class NoPreprocess(Preprocess):
    """No preparation."""

    def example(
        self, image: tf.Tensor, key: tf.Tensor, orientation: tf.Tensor | None = None, *, channels: int, training: bool
    ) -> tf.Tensor:
        return image

    def batch(self, images: Any, key: tf.Tensor, *, training: bool) -> Any:
        return images


NO_PREPROCESS = NoPreprocess(augment="none", image_size=None, mean=[], std=[], white=255)


def make_preprocess(config: DataConfig, *, channels: int, white: int) -> Preprocess:
    """Return the preprocessing of a source. Raise ConfigError if the settings do not fit the images."""
    for key, values in (("mean", config.mean), ("std", config.std)):
        if len(values) not in (1, channels):
            raise ConfigError(
                f"data.{key}={format_value(values)}: the images have {channels} channel(s); give "
                + ("1 number" if channels == 1 else f"1 or {channels} numbers")
            )
    if config.augment == "inception" and config.image_size is None:
        raise ConfigError("data.augment=inception crops to a size: set data.image_size, for example to 224")
    return Preprocess(
        augment=config.augment,
        image_size=config.pixels,
        mean=list(config.mean),
        std=list(config.std),
        white=white,
        jitter=config.jitter,
        randaugment=config.randaugment,
        magnitude=config.magnitude,
        erasing=config.erasing,
    )
