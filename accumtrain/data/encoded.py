"""Examples stored as PNG or JPEG, decoded while training."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque

import numpy as np
import tensorflow as tf

from accumtrain.data.images import decode
from accumtrain.data.source import ArraySplit, Split
from accumtrain.errors import DataError

# Number of reads remembered for `inspect_recent`: more than the pipeline ever has in flight.
_REMEMBERED = 256


class EncodedSplit(Split):
    """A split of encoded images. `read` returns items, string [n], and `load` the encoded image of an item.

    An error inside a compiled graph does not say which example failed to decode. So every read is remembered, and after
    an error `inspect_recent` decodes the remembered examples again, one by one.
    """

    def __init__(self, size: int, image_shape: tuple[int, int, int] | None, channels: int) -> None:
        self.size = size
        self.image_shape = image_shape
        self.channels = channels
        self.decoded: ArraySplit | None = None  # filled by resident.py
        self._recent: deque[np.ndarray] = deque(maxlen=_REMEMBERED)

    def load(self, item: tf.Tensor) -> tf.Tensor:
        """The encoded image, string [], of one item that `read` returned; called in graphs."""
        return item

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """The encoded image of one example; called outside of graphs. Raises DataError if it can't be read."""

    @abstractmethod
    def name(self, index: int) -> str:
        """The name of an example in messages: a file, or a record of a file."""

    def remember(self, index: np.ndarray) -> None:
        """Remembers that the examples `index`, int64 [n], are being read."""
        self._recent.append(index)

    def inspect(self, index: int) -> None:
        """Raises a DataError that names the example if it can't be read, decoded, or has the wrong size."""
        encoded = self.encoded(index)
        try:
            found = tuple(decode(tf.constant(encoded), self.channels).shape)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            raise DataError(
                f"{self.name(index)} can't be decoded as an image ({len(encoded)} bytes): replace or remove it"
            ) from error
        if self.image_shape not in (None, found):
            raise DataError(
                f"{self.name(index)} is {_size(found)}, other images are {_size(self.image_shape)}: "
                "set data.image_size to resize all to one size"
            )

    def inspect_recent(self) -> None:
        """Inspects the examples read last, one of which must have caused an input error. Raises DataError."""
        for index in sorted({index for read in list(self._recent) for index in read.tolist()}):
            self.inspect(index)


def _size(shape: tuple[int, int, int] | None) -> str:
    assert shape is not None
    return f"{shape[1]} x {shape[0]} pixels"
