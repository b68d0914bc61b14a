"""Large images as tiles: examples of one size, each of which decides the pixels in its middle.

The strategy is that of the U-Net (Ronneberger et al. 2015, arXiv:1505.04597): tiles overlap, and a pixel is decided by
the tile in which it lies deepest. So it has the answer of the whole image, if the network sees no farther than the
overlap, and if the tile begins where its coarsest pixels do: at multiples of ALIGNED, but for the last tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.data.images.encoded import EncodedSplit, Label, StoredExample
from accumtrain.data.source import BadExample, Split
from accumtrain.errors import DataError

ALIGNED = 32  # pixels: the coarsest ones of a network that halves its maps up to five times
IMAGE, MASK, TILE = "image", "mask", "tile"  # the parts of an example


def divide_side(side: int, tile: int, margin: int) -> list[tuple[int, int, int]]:
    """Return the tiles along a side: where each begins, and the first and the end of the pixels that it decides.

    Args:
        margin: at least so many pixels lie between these and an edge of the tile that is none of the image.
    """
    if side <= tile:
        return [(0, 0, side)]
    most = tile - 2 * margin  # from one tile to the next
    step = most // ALIGNED * ALIGNED or most
    starts = [*range(0, side - tile, step), side - tile]
    edges = [(start + before + tile) // 2 for before, start in pairwise(starts)]
    return list(zip(starts, [0, *edges], [*edges, side], strict=True))


def plan_tiles(sizes: np.ndarray, tile: tuple[int, int], margin: int) -> np.ndarray:
    """Return the tiles of images, int32 [T, 7], image by image.

    Each row has the number of the image, top and left of the tile, and top, left, bottom and right of the pixels that
    it decides, all in the image.

    Args:
        sizes: height and width of each image, [N, 2].
        tile: those of a tile.
    """
    rows = []
    for number, size in enumerate(np.asarray(sizes).tolist()):
        along, across = (divide_side(side, length, margin) for side, length in zip(size, tile, strict=True))
        rows += [(number, y, x, top, left, end, right) for y, top, end in along for x, left, right in across]
    return np.array(rows, np.int32).reshape(-1, 7)


class TiledSplit(EncodedSplit):
    """The images of a split in tiles. `read` returns what the split does, with the tile of each example beside it.

    Args:
        images: the split, of whole images, or a part of one.
        sizes: height and width of each as it is cut, int [N, 2].
        stored_sizes: those as it is stored.
        tile: height and width of a tile.
        margin: as of `divide_side`.

    Attributes:
        images: see above.
        tiles: as `plan_tiles` returns them.
    """

    def __init__(
        self, images: Split, sizes: np.ndarray, stored_sizes: np.ndarray, tile: tuple[int, int], margin: int
    ) -> None:
        self.images, self.image_sizes, self.stored_sizes = images, sizes, stored_sizes
        self.tiles = plan_tiles(sizes, tile, margin)
        self.size, self.shape, self.white, self.decoded = len(self.tiles), None, images.white, None
        whole = images.whole
        self._encoded = whole if isinstance(whole, EncodedSplit) else None
        self.skips = self._encoded is not None and self._encoded.skips
        with tf.device("CPU"):
            self._tiles = tf.constant(self.tiles)

    def read(self, index: tf.Tensor) -> tuple[Any, tf.Tensor]:
        tiles = tf.gather(self._tiles, index)
        inputs, _ = self.images.read(tf.cast(tiles[:, 0], tf.int64))
        parts = inputs if isinstance(inputs, dict) else {IMAGE: inputs}
        return {**parts, TILE: tiles[:, 1:]}, tf.cast(index, tf.int32)

    def load_limited(self, item: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the image of an item, and its mask if it has one, loaded."""
        if self._encoded is None:
            return item
        parts = {name: part for name, part in item.items() if name != TILE}
        loaded = self._encoded.load_limited(parts if MASK in parts else parts[IMAGE])
        return {**(loaded if isinstance(loaded, dict) else {IMAGE: loaded}), TILE: item[TILE]}

    def orientation(self, index: tf.Tensor) -> tf.Tensor | None:
        return None if self._encoded is None else self._encoded.orientation(self._in_whole(index))

    def _in_whole(self, index: tf.Tensor) -> tf.Tensor:
        """Return the index of the image of a tile in the whole split, int64."""
        return self.images.in_whole(tf.cast(tf.gather(self._tiles, index)[..., 0], tf.int64))

    @property
    def undivided(self) -> Split:
        return self.images

    # ---- an image that can't be used: none of its tiles can

    @property
    def channels(self) -> int:
        return self.images.whole.channels

    @channels.setter
    def channels(self, value: int) -> None:
        self.images.whole.channels = value

    @property
    def failure(self) -> DataError | None:
        return None if self._encoded is None else self._encoded.failure

    @failure.setter
    def failure(self, value: DataError | None) -> None:
        assert self._encoded is not None, "it fails"
        self._encoded.failure = value

    @property
    def skipped(self) -> dict[int, BadExample]:
        """The images left out so far, by the index of their first tile."""
        left_out = self.images.skipped
        return {int(np.searchsorted(self.tiles[:, 0], image)): bad for image, bad in left_out.items()}

    @property
    def unusable(self) -> np.ndarray:
        """The indices of all tiles of the images left out so far, int64 [n]."""
        return np.flatnonzero(np.isin(self.tiles[:, 0], list(self.images.skipped)))

    def skip(self, index: np.ndarray) -> None:
        assert self._encoded is not None, "it skips"
        self._encoded.skip(self._in_whole(tf.constant(index)).numpy())

    def leave_out(self, index: int, bad: BadExample) -> None:
        assert self._encoded is not None, "it skips"
        self._encoded.leave_out(int(self._in_whole(tf.constant(index, tf.int64))), bad)

    def inspect(self, index: int) -> StoredExample:
        assert self._encoded is not None, "it is of files"
        return self._encoded.inspect(int(self._in_whole(tf.constant(index, tf.int64))))

    def inspect_recent(self) -> None:
        if self._encoded is not None:
            self._encoded.inspect_recent()

    def read_stored(self, index: int) -> tuple[bytes, Label]:
        assert self._encoded is not None, "it is of files"
        return self._encoded.read_stored(int(self._in_whole(tf.constant(index, tf.int64))))

    def name(self, index: int) -> str:
        assert self._encoded is not None, "it is of files"
        return self._encoded.name(int(self._in_whole(tf.constant(index, tf.int64))))


def join_tiles(split: TiledSplit, answers: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of each image, and its answers [height, width, ...], from those of its tiles in their order.

    An image of which tiles are missing is left out.

    Args:
        answers: indices of tiles, [n], and their answers, [n, *tile, ...].
    """
    count_of, begun, missing, whole = np.bincount(split.tiles[:, 0]), -1, 0, np.empty(0)
    for indices, values in answers:
        for index, value in zip(indices, values, strict=True):
            image, top, left, first, start, end, stop = split.tiles[index].tolist()
            if image != begun:
                begun, missing = image, int(count_of[image])
                whole = np.empty([*split.image_sizes[image], *value.shape[2:]], value.dtype)
            whole[first:end, start:stop] = value[first - top : end - top, start - left : stop - left]
            missing -= 1
            if not missing:
                yield image, whole
