"""Examples stored as tf.train.Example records with an encoded image and an integer label."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.images import decode
from accumtrain.data.shards import Shards
from accumtrain.errors import DataError


class RecordSplit(EncodedSplit):
    """Records of shards. If the shape of images is unknown and they are not resized, call `fix_shape`."""

    def __init__(
        self,
        shards: Shards,
        *,
        image_feature: str,
        label_feature: str,
        num_classes: int,
        image_shape: tuple[int, int, int] | None,
        channels: int,
    ) -> None:
        super().__init__(len(shards), image_shape, channels)
        self._shards = shards
        self._image_feature = image_feature
        self._label_feature = label_feature
        self._num_classes = num_classes

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        records = tf.ensure_shape(tf.numpy_function(self._fetch, [index], tf.string), [None])
        parsed = tf.io.parse_example(
            records,
            {
                self._image_feature: tf.io.FixedLenFeature([], tf.string),
                self._label_feature: tf.io.FixedLenFeature([], tf.int64),
            },
        )
        label = parsed[self._label_feature]
        known = tf.reduce_all((label >= 0) & (label < self._num_classes))
        with tf.control_dependencies([tf.debugging.Assert(known, ["label out of range", label])]):
            return parsed[self._image_feature], tf.cast(label, tf.int32)

    def encoded(self, index: int) -> bytes:
        """As in EncodedSplit. It checks the label, too."""
        name = self.name(index)
        try:
            features = tf.train.Example.FromString(self._shards.read(np.array([index]))[0]).features.feature
        except ValueError as error:  # protobuf's DecodeError
            raise DataError(f"{name} is no tf.train.Example: write the file again") from error
        image = self._one_value(features, self._image_feature, "bytes_list", "data.image_feature", name)
        label = self._one_value(features, self._label_feature, "int64_list", "data.label_feature", name)
        if not 0 <= label < self._num_classes:
            raise DataError(
                f"{name} has label {label}, with data.num_classes={self._num_classes} labels are "
                f"0..{self._num_classes - 1}: correct the one or the other"
            )
        return image

    def name(self, index: int) -> str:
        return self._shards.name(index)

    def fix_shape(self) -> None:
        """Requires all images to have the shape of the first one. Raises DataError if that can't be read."""
        self.inspect(0)
        self.image_shape = tuple(decode(tf.constant(self.encoded(0)), self.channels).shape)

    def _fetch(self, index: np.ndarray) -> np.ndarray:
        self.remember(index)
        return np.array(self._shards.read(index), object)

    @staticmethod
    def _one_value(features: Any, feature: str, kind: str, key: str, name: str) -> Any:
        values = getattr(features[feature], kind).value if feature in features else []
        if len(values) != 1:
            kinds = ", ".join(f"{known} ({features[known].WhichOneof('kind')})" for known in sorted(features))
            raise DataError(
                f"{name} has no single {kind} value called {feature!r}: set {key} to one of its features: {kinds}"
            )
        return values[0]
