"""Inputs that are images with a class for each pixel: crops to train on, tiles of whole images to evaluate and answer.

A stored example is a dict of an image and its mask, int32 [height, width], NONE where a pixel has no class. One that a
trained run is asked has no mask. All random changes are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.data.images.crops import SYMMETRIES, cut, draw_balanced_window, draw_symmetry, draw_window
from accumtrain.data.images.decode import decode, read_size
from accumtrain.data.images.encoded import EncodedSplit
from accumtrain.data.images.tiles import IMAGE, MASK, TILE, TiledSplit, join_tiles
from accumtrain.data.inputs.base import Answered, Asked
from accumtrain.data.inputs.pixels import MOVES, Pixels, make_images, make_pixels
from accumtrain.data.masks.config import MaskKeys
from accumtrain.data.source import Dataset, Split
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import NONE, format_value

_TURNED = 4  # EXIF orientations above it swap height and width


@dataclass(frozen=True)
class Scenes(Pixels):
    """Images [height, width, channels] with masks, as `Pixels`. The shape is that of a crop, or of all images.

    `crop`: height and width of a crop or tile; None takes images whole.
    `margin`: pixels at the edge of a tile that are decided by another tile.
    `balanced`: crops hold a pixel of a class that is drawn from those of the mask.
    """

    kind: ClassVar[str] = "scenes"

    crop: tuple[int, int] | None = None
    margin: int = 0
    balanced: bool = False

    # ---- in training and evaluation

    def by_example(self, *, training: bool) -> bool:
        return True

    def example(self, stored: Any, key: tf.Tensor, orientation: tf.Tensor | None = None, *, training: bool) -> Any:
        """Return image and mask of one example, or only the image if it has no mask, of the final size."""
        parts = stored if isinstance(stored, dict) else {IMAGE: stored}
        image = parts[IMAGE]
        image = decode(image, self.channels, orientation) if image.dtype == tf.string else image
        mask = tf.cast(parts[MASK], tf.int32) if MASK in parts else tf.fill(tf.shape(image)[:2], NONE)
        if self.image_size is not None:
            image = self._resize(image)
            mask = tf.image.resize(mask[..., tf.newaxis], self.image_size, "nearest")[..., 0]
        image, mask = self._cut(image, mask, key, parts.get(TILE), training)
        if training and self.augment in SYMMETRIES:
            image, mask = draw_symmetry([image, mask[..., tf.newaxis]], key, self.augment)
            mask = mask[..., 0]
        if training and self._changes_single_images:
            image = self._change_colours(image, key)
        return {IMAGE: image, MASK: mask} if MASK in parts else image

    def _cut(
        self, image: tf.Tensor, mask: tf.Tensor, key: tf.Tensor, tile: tf.Tensor | None, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a crop of both; of a tile, where only the pixels that it decides have a class."""
        if tile is not None:
            corner = tile[:2]
            rows, columns = (tf.range(tf.shape(mask)[axis]) for axis in (0, 1))
            inside = [(at >= tile[first]) & (at < tile[end]) for at, first, end in ((rows, 2, 4), (columns, 3, 5))]
            mask = tf.where(inside[0][:, tf.newaxis] & inside[1][tf.newaxis], mask, NONE)
        elif self.crop is None:
            return tf.ensure_shape(image, self.shape), tf.ensure_shape(mask, self.shape[:2])
        elif self.balanced:
            corner = draw_balanced_window(mask, self.crop, key)
        else:
            corner = draw_window(tf.shape(mask), self.crop, key)
        colour = np.resize(np.array(self.mean, np.float32), self.channels)
        fill = tf.constant(colour) if image.dtype.is_floating else tf.cast(tf.round(colour * self.white), image.dtype)
        size = self.shape[0], self.shape[1]
        return cut(image, corner, size, fill), cut(mask, corner, size, tf.constant(NONE))

    def batch(self, inputs: Any, key: tf.Tensor | None, *, training: bool) -> Any:
        """Normalise the images of a batch."""
        if not isinstance(inputs, dict):
            return super().batch(inputs, key, training=training)
        return {**inputs, IMAGE: super().batch(inputs[IMAGE], key, training=training)}

    def evaluated(self, split: Split) -> Split:
        """Return a split in tiles, if images are cropped."""
        if self.crop is None:
            return split
        assert split.pixels is not None, "the sizes of images with masks are known"
        return self._tile(split, split.pixels)

    def _tile(self, split: Split, sizes: np.ndarray) -> TiledSplit:
        """Return the images of a split in tiles. `sizes` are those of the stored images, upright, int [N, 2]."""
        taken = sizes if self.image_size is None else np.tile(self.image_size, [split.size, 1])
        return TiledSplit(split, taken, sizes, (self.shape[0], self.shape[1]), self.margin)

    # ---- in an export

    def serve(self, given: tf.Tensor) -> tf.Tensor:
        """Prepare images. They keep their size, unless data.image_size says one."""
        if self.image_size is not None:
            return super().serve(given)
        mean, std = (tf.constant(values, tf.float32) for values in (self.mean, self.std))
        return (tf.cast(given, tf.float32) / self.white - mean) / std

    def samples(self) -> list[np.ndarray]:
        return [make_images(self.shape, (1.0, 1.0))] if self.image_size is None else super().samples()

    @property
    def resized_to(self) -> tuple[int, ...] | None:
        return self.image_size

    # ---- in the files of a run

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], config: DataConfig) -> Scenes:
        shape = tuple(facts["shape"])
        if len(shape) != 3:
            raise ConfigError(f"inputs.shape={format_value(list(shape))}: must be height, width and channels of images")
        return make_scenes(config, shape, config.WHITE)

    # ---- asked of a trained run

    def adapt(self, config: DataConfig) -> DataConfig:
        return config

    def match(self, split: Split, config: DataConfig) -> Scenes:
        super().match(split, config)
        return make_scenes(config, self.shape, split.white)

    def open_named(self, named: Sequence[str], config: DataConfig, key: str) -> Asked:
        """Return the tiles of the images that texts name, with the names of the images."""
        asked = super().open_named(named, config, key)
        split = asked.data.train
        assert isinstance(split, EncodedSplit), "images are files"
        return asked._replace(data=self._ask_tiles(asked.data, read_sizes(split)))

    def open_array(self, array: np.ndarray, config: DataConfig) -> Dataset:
        data = super().open_array(array, config)
        return self._ask_tiles(data, np.tile(array.shape[1:3], [len(array), 1]))

    def _ask_tiles(self, data: Dataset, sizes: np.ndarray) -> Dataset:
        """Return the images that a trained run is asked in tiles."""
        tiled = self._tile(data.train, sizes)
        return replace(data, train=tiled, test=tiled)

    def join(self, split: Split, answers: Iterable[Answered]) -> Iterable[Answered]:
        """Return the answers to whole images, of their size as they are stored, from those to tiles.

        Numbers of classes are those of the nearest pixel. Values, such as probabilities, are interpolated.
        """
        assert isinstance(split, TiledSplit), "as open_named makes it"
        for image, whole in join_tiles(split, answers):
            yield [image], [_resize_answers(whole, split.stored_sizes[image])]


def _resize_answers(answers: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return answers [height, width, ...] for pixels of an image of another size."""
    if answers.shape[:2] == tuple(size):
        return answers
    is_class = answers.ndim == 2
    pixels = answers[..., np.newaxis] if is_class else answers
    resized = tf.image.resize(pixels, size, "nearest" if is_class else "bilinear").numpy()
    return resized[..., 0] if is_class else resized


def read_sizes(split: EncodedSplit) -> np.ndarray:
    """Return height and width of each image of a split of files, upright, int [N, 2]; of 1 for one without a header."""

    def read(index: int) -> tuple[int, int]:
        try:
            encoded, _ = split.read_stored(index)
            height, width = read_size(tf.constant(encoded)).numpy().tolist()
        except (DataError, tf.errors.InvalidArgumentError, ValueError):
            return 1, 1  # it is named when it is decoded
        orientation = split.orientation(tf.constant(index, tf.int64))
        turned = orientation is not None and int(orientation) > _TURNED
        return (width, height) if turned else (height, width)

    with ThreadPoolExecutor() as pool:
        return np.array(list(pool.map(read, range(split.size))), np.int64).reshape(-1, 2)


def make_scenes(config: DataConfig, shape: tuple[int, ...], white: int) -> Scenes:
    """Return the inputs of images with masks.

    Args:
        shape: of an image of the source, or of a crop.
        white: the value of an integer pixel that means 1.0.

    Raises:
        ConfigError: the settings do not fit the images.
    """
    assert isinstance(config, MaskKeys), "a source with masks"
    if config.crop is not None and config.image_size is not None:
        raise ConfigError(
            f"data.crop={format_value(config.crop)} and data.image_size={format_value(config.image_size)}: crops are "
            "of images as they are stored; leave one of the two out"
        )
    for key, value, instead in (
        ("augment", config.augment in MOVES, "use data.augment=flip or dihedral, and data.crop=256 for crops"),
        ("randaugment", config.randaugment, "use data.jitter=0.3"),
        ("erasing", config.erasing, "leave it out"),
    ):
        if value:
            raise ConfigError(
                f"data.{key}={format_value(getattr(config, key))}: would change images, and leave their masks as they "
                f"are; {instead}"
            )
    crop = config.crop_size
    taken = tuple(crop or config.pixels or shape[:2])
    pixels = make_pixels(config, (*taken, shape[-1]), white)
    keys = {key: getattr(pixels, key) for key in ("augment", "image_size", "mean", "std", "white", "jitter")}
    return Scenes((*taken, shape[-1]), **keys, crop=crop, margin=config.tile_margin, balanced=config.balanced_crops)
