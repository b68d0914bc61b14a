"""Inputs that are images: decoded, resized, augmented, normalised.

Stored pixels are uint8, 0..white, or float32, 0..1. They become float32, 0..1, then (x - mean) / std. Work that must be
done image by image (decoding, windows of different sizes) is in `example`; work on whole batches is in `batch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from accumtrain.console import format_things
from accumtrain.data.config import DataConfig
from accumtrain.data.images import augment
from accumtrain.data.images.crops import DIHEDRAL, SYMMETRIES, draw_symmetry
from accumtrain.data.images.damage import leave_out_damaged
from accumtrain.data.images.decode import central_window, cut_window, decode, decode_window
from accumtrain.data.images.encoded import EncodedSplit
from accumtrain.data.images.randaugment import randaugment
from accumtrain.data.images.resize import resize
from accumtrain.data.inputs.base import Asked, Inputs
from accumtrain.data.local_files import list_named_images
from accumtrain.data.source import ArraySplit, Dataset, Split, unlabelled
from accumtrain.data.sources.folder import open_files
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import format_value

WHITE = 255  # of the pixels of a file
MOVES = ("shift", "crop_flip", "inception")  # values of data.augment by which images are moved within their frame
_PNG_CHANNELS = (1, 3, 4)
# ---- samples of an export
_NUMBER = 4  # images of each size
_SIZES = ((1.0, 1.0), (1.7, 2.3), (0.5, 0.6))  # in shares of the model's
_COARSE, _NOISE = 4, 30  # the images are a grid of so many patches a side, under noise


@dataclass(frozen=True)
class Pixels(Inputs):
    """Images [height, width, channels], with keys as in DataConfig.

    `image_size`: height and width; None keeps the stored size.
    `white`: the pixel value of 1.0.
    """

    kind: ClassVar[str] = "pixels"
    examples: ClassVar[str] = "images"
    asked: ClassVar[str] = "images"
    sizes: ClassVar[tuple[str, ...]] = ("height", "width")
    is_seen: ClassVar[bool] = True

    augment: str
    image_size: tuple[int, int] | None
    mean: list[float]
    std: list[float]
    white: int
    jitter: float = 0.0
    randaugment: int = 0
    magnitude: float = 0.0
    erasing: float = 0.0

    @property
    def channels(self) -> int:
        return self.shape[-1]

    # ---- in training and evaluation

    def by_example(self, *, training: bool) -> bool:
        """Return whether images must pass through `example` even if they need no decoding."""
        changes = self._changes_single_images or self.augment in SYMMETRIES
        return self.augment == "inception" or (training and changes)

    @property
    def _changes_single_images(self) -> bool:
        return self.jitter > 0 or self.randaugment > 0

    def example(
        self, stored: tf.Tensor, key: tf.Tensor, orientation: tf.Tensor | None = None, *, training: bool
    ) -> tf.Tensor:
        """Prepare one image: an encoded string [] with its EXIF orientation, or pixels [height, width, channels].

        Returns:
            Pixels [height, width, channels] of the final size: uint8 0..white if the image was only decoded, else
            float32 0..1.
        """
        image, channels = stored, self.channels
        encoded = image.dtype == tf.string
        if self.augment == "inception":
            window_of = partial(augment.random_window, key=key) if training else central_window
            image = decode_window(image, channels, window_of, orientation) if encoded else cut_window(image, window_of)
            image = self._resize(image, antialias=False)
            image = augment.random_colour(augment.random_flip(image, key), key) if training else image
        else:
            image = decode(image, channels, orientation) if encoded else image
            image = tf.ensure_shape(image, self.shape) if self.image_size is None else self._resize(image)
            if training and self.augment in SYMMETRIES:
                (image,) = draw_symmetry([image], key, self.augment)
        return self._change_colours(image, key) if training and self._changes_single_images else image

    def _change_colours(self, image: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Return the image, float32 0..1, after colour jitter and RandAugment."""
        if image.dtype == tf.uint8:
            image = tf.cast(image, tf.float32) / self.white
        if self.jitter:
            image = augment.random_jitter(image, key, self.jitter)
        fill = np.resize(np.array(self.mean, np.float32), self.channels)
        return randaugment(image, key, self.randaugment, self.magnitude / 10, fill)

    def batch(self, inputs: tf.Tensor, key: tf.Tensor | None, *, training: bool) -> tf.Tensor:
        """Prepare images [n, height, width, channels] with keys uint64 [n]: normalised float32 of the final size."""
        images = inputs
        if self.image_size is not None:
            images = self._resize(images)
        elif images.dtype == tf.uint8:
            images = tf.cast(images, tf.float32) / self.white
        if training and self.augment == "shift":  # before normalising: the padding is black
            images = augment.random_crop(images, key, padding=1, flip=False)
        images = self._normalise(images)
        if training and self.augment == "crop_flip":  # after it: the padding is the mean, as in He et al.
            images = augment.random_crop(images, key, padding=4, flip=True)
        if training and self.erasing:
            images = augment.random_erasing(images, key, self.erasing)
        return tf.ensure_shape(images, [None, *self.shape])

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

    # ---- in the files of a run

    def facts(self) -> dict[str, Any]:
        """Return kind and shape. All else is in the configuration of the run."""
        return {"kind": self.kind, "shape": list(self.shape)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], config: DataConfig) -> Pixels:
        """Return the inputs of a trained run, for pixels 0..255 in images of any size."""
        shape = tuple(facts["shape"])
        if len(shape) != 3:
            raise ConfigError(f"inputs.shape={format_value(list(shape))}: must be height, width and channels of images")
        return replace(make_pixels(config, shape, WHITE), image_size=shape[:2])

    # ---- asked of a trained run

    def adapt(self, config: DataConfig) -> DataConfig:
        return replace(config, image_size=list(self.shape[:2]))

    def match(self, split: Split, config: DataConfig) -> Pixels:
        if isinstance(split, EncodedSplit):
            split.channels = self.channels
        elif split.channels != self.channels:
            raise DataError(
                f"data={config.kind}: its images have {format_things(split.channels, 'channel')}, the run was "
                f"trained on {self.channels}; give images with {self.channels}"
            )
        return make_pixels(config, self.shape, split.white)

    def open_named(self, named: Sequence[str], config: DataConfig, key: str) -> Asked:
        found = [list_named_images(text, key) for text in named]
        files = list(dict.fromkeys(file for listed, _ in found for file in listed))
        split, notes = open_files(files, config, self.channels)
        leave_out_damaged([split])
        ignored = [str(file) for _, others in found for file in others]
        return Asked(list(map(str, files)), unlabelled(split, self, notes), ignored)

    def open_array(self, array: np.ndarray, config: DataConfig) -> Dataset:
        """Return images: floats 0..1 or integers 0..config.WHITE, [N, H, W, C], or [N, H, W] of grey images.

        Raises:
            DataError: The array has another shape, or values out of its range.
        """
        if array.ndim == 3 and self.channels == 1:
            array = array[..., np.newaxis]
        if array.ndim != 4 or array.dtype.kind not in "fiu" or array.shape[-1] != self.channels or array.size == 0:
            raise DataError(
                f"images is an array {list(array.shape)} of {array.dtype}: give numbers [N, height, width, "
                f"{self.channels}]; one image has N=1, and images of different sizes are given as files, or one after "
                "the other"
            )
        white = 1 if array.dtype.kind == "f" else config.WHITE
        if not (array.min() >= 0 and array.max() <= white):
            raise DataError(
                f"images has values {array.min():g} to {array.max():g} of {array.dtype}: give floats 0..1, or integers "
                f"0..{config.WHITE}"
            )
        pixels = array if array.dtype.kind == "f" else array.astype(np.uint8)
        split = ArraySplit(pixels, np.arange(len(array)), config.WHITE)
        return unlabelled(split, replace(self, white=config.WHITE))

    # ---- in an export

    @property
    def signature(self) -> tf.TensorSpec:
        return tf.TensorSpec([None, None, None, self.channels], tf.uint8, "images")

    def serve(self, given: tf.Tensor) -> tf.Tensor:
        """Prepare images of any size as an evaluation does, without an operation of tf.image."""
        height, width, _ = self.shape
        pixels = resize(tf.cast(given, tf.float32), height, width, central=self.by_example(training=False))
        mean, std = (tf.constant(values, tf.float32) for values in (self.mean, self.std))
        return (pixels / self.white - mean) / std

    def samples(self) -> list[np.ndarray]:
        """Return images of several sizes."""
        return [make_images(self.shape, size) for size in _SIZES]

    @property
    def resized_to(self) -> tuple[int, ...] | None:
        return self.shape[:2]

    # ---- for a person to look at

    def pictures(self, inputs: tf.Tensor) -> list[bytes]:
        """Return images as PNG files.

        Each is spread over the range of grey values by itself, which undoes the standardisation but for contrast.
        """
        if inputs.shape[-1] not in _PNG_CHANNELS:
            return []
        low, high = (edge(inputs, axis=(1, 2, 3), keepdims=True) for edge in (tf.reduce_min, tf.reduce_max))
        grey = tf.cast(255 * tf.math.divide_no_nan(inputs - low, high - low), tf.uint8)
        return [tf.io.encode_png(image).numpy() for image in grey]

    def show(self, inputs: np.ndarray) -> np.ndarray:
        """Return images before they were normalised, float32 [n, height, width, channels], 0..1."""
        std, mean = (np.resize(np.array(value, np.float32), self.channels) for value in (self.std, self.mean))
        shown: np.ndarray = np.clip(inputs * std + mean, 0, 1)
        return shown


def make_pixels(config: DataConfig, shape: tuple[int, ...], white: int) -> Pixels:
    """Return the images of a source, [height, width, channels] in a batch.

    Args:
        white: The value of an integer pixel that means 1.0.

    Raises:
        ConfigError: The settings do not fit the images.
    """
    channels = shape[-1]
    for key, values in (("mean", config.mean), ("std", config.std)):
        if len(values) not in (1, channels):
            raise ConfigError(
                f"data.{key}={format_value(values)}: the images have {format_things(channels, 'channel')}; give "
                + ("1 number" if channels == 1 else f"1 or {channels} numbers")
            )
    if config.augment == "inception" and config.image_size is None:
        raise ConfigError("data.augment=inception crops to a size: set data.image_size, for example to 224")
    check_square(config, shape)
    return Pixels(
        shape,
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


def check_square(config: DataConfig, shape: tuple[int, ...]) -> None:
    """Raise ConfigError if images that are not square are to be turned."""
    if config.augment == DIHEDRAL and shape[0] != shape[1]:
        raise ConfigError(
            f"data.augment=dihedral: turns images by 90 degrees, and these are {shape[0]} x {shape[1]}; use "
            "data.augment=flip, or make them square by data.image_size"
        )


def make_images(shape: tuple[int, ...], size: tuple[float, float]) -> np.ndarray:
    """Return images, uint8 [N, height, width, channels], that are the same in every call.

    Args:
        shape: That of the images that the model takes.
        size: Height and width in shares of those.
    """
    random = np.random.default_rng(0)
    height, width = (max(1, round(side * share)) for side, share in zip(shape, size, strict=False))
    patches = random.integers(0, 256, [_NUMBER, _COARSE, _COARSE, shape[-1]])
    rows, columns = (np.arange(side) * _COARSE // side for side in (height, width))
    noise = random.integers(-_NOISE, _NOISE + 1, [_NUMBER, height, width, shape[-1]])
    return np.clip(patches[:, rows][:, :, columns] + noise, 0, 255).astype(np.uint8)
