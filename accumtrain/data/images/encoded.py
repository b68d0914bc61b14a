"""Examples stored as images of a file format, decoded while training."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.data.images.decode import decode, limit_pixels, read_size
from accumtrain.data.images.header import FORMATS, find_image_fault
from accumtrain.data.source import ArraySplit, BadExample, Split, UnreadableExample
from accumtrain.errors import DataError

Label = Any  # a class, or float32 [T]
_REMEMBERED = 256  # reads, for `inspect_recent`: more than the pipeline ever has in flight


@dataclass(frozen=True)
class StoredExample:
    """An example as it is stored, with the shape of its image, upright: [height, width, channels]."""

    image: bytes
    label: Label
    shape: tuple[int, int, int]


class EncodedSplit(Split):
    """A split of encoded images. `read` returns items, string [n], and `load` the encoded image of an item.

    An error inside a compiled graph does not say which example failed to decode. So every read is remembered, and after
    an error `inspect_recent` decodes the remembered examples again, one by one.

    Attributes:
        skips: True leaves out examples that can't be read or decoded (data.on_error=skip).
        failure: The error that a read has raised in a graph, if it is known.
        undecodable: The remedy for what is no image.
        decoded: The images in memory, once `cache_decoded` of pipeline.py has filled it.
    """

    undecodable = f"replace it by a {FORMATS}, or remove it"

    def __init__(self, size: int, shape: tuple[int, int, int] | None, channels: int, config: DataConfig) -> None:
        self.size = size
        self.shape = shape
        self.channels = channels
        self.skips = config.on_error == "skip"
        self.decoded: ArraySplit | None = None
        self.failure: DataError | None = None
        self._max_pixels = config.max_pixels
        self._recent: deque[np.ndarray] = deque(maxlen=_REMEMBERED)
        self._skipped: dict[int, BadExample] = {}

    @abstractmethod
    def read_stored(self, index: int) -> tuple[bytes, Label]:
        """Return the encoded image and the label of one example, outside of graphs. Raise DataError if unreadable."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the name of an example in messages: a file, or a record of a file."""

    def joined_with(self, others: Sequence[Split]) -> Split:
        raise DataError(
            f"the data has {1 + len(others)} splits of images that can't be put together: give data with one"
        )

    def load(self, item: tf.Tensor) -> tf.Tensor:
        """Return the encoded image, string [], of one item that `read` returned. Called in graphs."""
        return item

    def orientation(self, index: tf.Tensor) -> tf.Tensor | None:
        """Return EXIF orientations, int32, of the examples `index`; None if all are upright. Called in graphs."""
        return None

    def load_limited(self, item: tf.Tensor) -> tf.Tensor:
        """Return what `load` does. An image of more than data.max_pixels is an error."""
        return limit_pixels(self.load(item), self._max_pixels)

    @property
    def skipped(self) -> dict[int, BadExample]:
        return dict(sorted(self._skipped.items()))

    @property
    def unusable(self) -> np.ndarray:
        """The indices of the examples left out so far, int64 [n]."""
        return np.array(list(self.skipped), np.int64)

    def remember(self, index: np.ndarray) -> np.ndarray:
        """Remember that the examples `index`, int64 [n], are read. Return them."""
        self._recent.append(index)
        return index

    def inspect(self, index: int) -> StoredExample:
        """Return an example. Raise BadExample if it can't be read or decoded, or has the wrong size."""
        image, label = self.read_stored(index)
        name = self.name(index)
        try:
            height, width = read_size(tf.constant(image)).numpy().tolist()
            if height * width > self._max_pixels:
                raise UnreadableExample(
                    name,
                    f"is {width} x {height} pixels, more than data.max_pixels={self._max_pixels}",
                    f"make it smaller, or set data.max_pixels={height * width}",
                )
            orientation = self.orientation(tf.constant(index, tf.int64))
            shape = tuple(decode(tf.constant(image), self.channels, orientation).shape)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            reason = find_image_fault(image) or f"can't be decoded as an image ({len(image)} bytes)"
            raise UnreadableExample(name, reason, self.undecodable) from error
        if self.shape not in (None, shape):
            raise BadExample(
                name,
                f"is {_describe_size(shape)}, other images are {_describe_size(self.shape)}",
                "set data.image_size to resize all to one size",
            )
        return StoredExample(image, label, shape)

    def inspect_first(self) -> StoredExample:
        """Return the first example that can be used. Raise DataError if there is none, or if it may not be left out."""
        for index in range(self.size):
            try:
                return self.inspect(index)
            except UnreadableExample as error:
                if not self.skips:
                    raise
                self._skipped[index] = error
        raise self._none_left()

    def leave_out(self, index: int, bad: BadExample) -> None:
        """Leave out an example, whether it can be decoded or not. Raise DataError if no other is left."""
        self._skipped[index] = bad
        if len(self._skipped) == self.size:
            raise self._none_left()

    def skip(self, index: np.ndarray) -> None:
        """Note that the example `index`, int64 [], which has failed in a graph, is left out, and its fault.

        Raises:
            DataError: It may not be left out, or no example is left.
        """
        number = int(index)
        try:
            if number not in self._skipped:
                self.inspect(number)
                raise DataError(f"{self.name(number)} could not be read and now it can: run the same command again")
        except UnreadableExample as error:
            self._skipped[number] = error
        except DataError as error:
            self.failure = error
            raise
        if len(self._skipped) == self.size:
            self.failure = self._none_left()
            raise self.failure

    def _none_left(self) -> DataError:
        first = next(iter(self.skipped.values()))
        return DataError(f"none of {self.size} examples can be used, the first: {first.fault}: {first.remedy}")

    def inspect_recent(self) -> None:
        """Inspect the examples read last, one of which must have caused an input error. Raise DataError for it."""
        if self.failure is not None:
            raise self.failure
        for index in sorted({index for read in list(self._recent) for index in read.tolist()} - self._skipped.keys()):
            self.inspect(index)


def _describe_size(shape: tuple[int, int, int] | None) -> str:
    assert shape is not None
    return f"{shape[1]} x {shape[0]} pixels"
