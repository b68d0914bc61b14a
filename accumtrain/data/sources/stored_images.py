"""Images that a table holds itself: encoded, as bytes in a column."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.data.encoded import EncodedSplit, Label
from accumtrain.data.image_header import read_header

_CHANNELS = 3


class ColumnSplit(EncodedSplit):
    """Some images of a column, each with a label.

    Args:
        images: bytes, of all rows.
        rows: the rows of the split, int64 [size].
        labels: integers [size], or float32 [size, T].
        locate: from a row to its place in words.
    """

    def __init__(
        self,
        images: pa.ChunkedArray,
        rows: np.ndarray,
        labels: np.ndarray,
        locate: Callable[[int], str],
        config: DataConfig,
    ) -> None:
        super().__init__(len(rows), None, _CHANNELS, config)
        self.known_labels = self._known = labels
        self._images, self._rows, self._locate = images, rows, locate
        with tf.device("CPU"):
            self._labels = tf.constant(labels, tf.float32 if labels.dtype.kind == "f" else tf.int32)

    @property
    def stored_sizes(self) -> np.ndarray:
        """The bytes of each image."""
        return np.asarray(pc.binary_length(self._images).to_numpy())[self._rows]

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = tf.ensure_shape(tf.numpy_function(self._fetch, [index], tf.string), [None])
        return images, tf.gather(self._labels, index)

    def orientation(self, index: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._read_orientation, [index], tf.int32), [])

    def read_stored(self, index: int) -> tuple[bytes, Label]:
        return self._read(index), self._known[index]

    def name(self, index: int) -> str:
        return self._locate(int(self._rows[index]))

    def _fetch(self, index: np.ndarray) -> np.ndarray:
        return np.array([self._read(place) for place in self.remember(index).tolist()], object)

    def _read(self, place: int) -> bytes:
        image: bytes = self._images[int(self._rows[place])].as_py()
        return image

    def _read_orientation(self, index: np.ndarray) -> np.ndarray:
        return np.array(read_header(self._read(int(index))).orientation, np.int32)
