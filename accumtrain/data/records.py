"""Examples stored as tf.train.Example records with an encoded image and an integer label."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from accumtrain.data.bad_example import BadExample, UnreadableExample
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.shards import Shards
from accumtrain.errors import DataError
from accumtrain.kinds.sources import TfdsConfig, TfrecordConfig

_NO_EXAMPLE = "is no tf.train.Example"
_NOTHING = b"", 0  # in the place of an example that is left out: it can't be decoded


class RecordSplit(EncodedSplit):
    """Records of shards. Labels are 0..num_classes-1."""

    def __init__(
        self,
        shards: Shards,
        config: TfdsConfig | TfrecordConfig,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int] | None,
        channels: int,
    ) -> None:
        super().__init__(len(shards), image_shape, channels, config)
        self.shards = shards
        self._image_feature = config.image_feature
        self._label_feature = config.label_feature
        self._num_classes = num_classes
        self._rule, self._remedy = config.about_labels(num_classes)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(self._fetch, [index], [tf.string, tf.int32])
        return tf.ensure_shape(images, [None]), tf.ensure_shape(labels, [None])

    def stored(self, index: int) -> tuple[bytes, int]:
        return self._examples(np.array([index]))[0]

    def name(self, index: int) -> str:
        return self.shards.name(index)

    def _fetch(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encoded images, bytes [n], and labels, int32 [n]."""
        self.remember(index)
        try:
            images, labels = zip(*self._examples_or_nothing(index), strict=True)
        except DataError as error:
            self.failure = error
            raise
        return np.array(images, object), np.array(labels, np.int32)

    def _examples_or_nothing(self, index: np.ndarray) -> list[tuple[bytes, int]]:
        try:
            return self._examples(index)
        except UnreadableExample:
            if not self.skips:
                raise
        if len(index) == 1:
            return [_NOTHING]
        return [example for number in index for example in self._examples_or_nothing(number[None])]

    def _examples(self, index: np.ndarray) -> list[tuple[bytes, int]]:
        """Raises BadExample for a record that is damaged, no tf.train.Example, or lacks the image or the label."""
        payloads = self.shards.read(index)
        return [self._parse(int(number), payload) for number, payload in zip(index, payloads, strict=True)]

    def _parse(self, index: int, payload: bytes) -> tuple[bytes, int]:
        try:
            features = tf.train.Example.FromString(payload).features.feature
        except DecodeError as error:
            raise UnreadableExample(self.name(index), _NO_EXAMPLE) from error
        if not features:
            raise UnreadableExample(self.name(index), _NO_EXAMPLE)
        image = self._one_value(index, features, self._image_feature, "bytes_list", "data.image_feature")
        label = self._one_value(index, features, self._label_feature, "int64_list", "data.label_feature")
        if not 0 <= label < self._num_classes:
            raise BadExample(self.name(index), f"has label {label}, {self._rule}", self._remedy)
        return image, label

    def _one_value(self, index: int, features: Any, feature: str, kind: str, key: str) -> Any:
        values: Any = getattr(features[feature], kind).value if feature in features else []
        if len(values) != 1:
            kinds = ", ".join(f"{known} ({features[known].WhichOneof('kind')})" for known in sorted(features))
            raise BadExample(
                self.name(index),
                f"has no single {kind} value called {feature!r}",
                f"set {key} to one of its features: {kinds}",
            )
        return values[0]
