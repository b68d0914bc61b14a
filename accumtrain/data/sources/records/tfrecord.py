"""data=tfrecord: TFRecord files of one's own, of tf.train.Example, which two globs name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from accumtrain.data.config import RecordsConfig, TfrecordConfig
from accumtrain.data.images.encoded import EncodedSplit
from accumtrain.data.local_files import check_name
from accumtrain.data.source import BadExample, Source, Split, UnreadableExample, Wanted
from accumtrain.data.sources.records.record_index import is_remote
from accumtrain.data.sources.records.shards import ShardRange, Shards, TfrecordShards
from accumtrain.data.targets.classes import BadLabels, class_numbers, class_texts
from accumtrain.errors import DataError
from accumtrain.fields import format_value, normal_form, suggest_names

_NOTHING = b"", 0  # in the place of an example that is left out: it can't be decoded
_CHANNELS = 3


def open_tfrecord(config: TfrecordConfig, wanted: Wanted) -> Source:
    """Return the splits that two globs name.

    Raises:
        DataError: No file matches, a file is truncated or no TFRecord file, or a feature is missing.
    """
    train = _open(config, "data.path", config.path)
    test = _open(config, "data.test_path", config.test_path)
    first = train.inspect_first()
    if config.image_size is None:
        train.shape = test.shape = first.shape
    test.inspect_first()
    fingerprint = {"data.train.shards": train.shards.digest(), "data.test.shards": test.shards.digest()}
    return Source(train, test, config.num_classes, class_names=config.class_names, fingerprint=fingerprint)


def _open(config: TfrecordConfig, key: str, pattern: str) -> RecordSplit:
    paths = _find_paths(pattern)
    if not paths:
        raise DataError(f"{key}={pattern} matches no file: give TFRecord files, as in 'folder/train-*'")
    shards = TfrecordShards([ShardRange(path) for path in paths])
    if len(shards) == 0:
        raise DataError(
            f"{key}={pattern} matches {len(paths)} file(s) without a single record: give files that hold records"
        )
    split = RecordSplit(
        shards,
        config,
        num_classes=config.num_classes,
        shape=None,
        channels=_CHANNELS,
        raw_shape=config.raw_shape,
    )
    if config.raw_shape is None:
        split.undecodable += ", or set data.raw_shape=[height,width,channels] if these are pixels"
    return split


def _find_paths(pattern: str) -> list[str]:
    if is_remote(pattern):
        paths = [path for path in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(path)]
    else:
        # Path.glob takes no pattern with a root
        paths = [path for path in glob(pattern) if not Path(path).is_dir()]  # noqa: PTH207
    for path in paths:
        check_name(Path(path))
    return sorted(path for path in paths if not Path(path).name.startswith("."))


# ---- records ----


class RecordSplit(EncodedSplit):
    """Records of shards: tf.train.Example with an image, encoded or as pixels, and a label of 0..num_classes-1."""

    def __init__(
        self,
        shards: Shards,
        config: RecordsConfig,
        *,
        num_classes: int,
        shape: tuple[int, int, int] | None,
        channels: int,
        raw_shape: list[int] | None = None,
    ) -> None:
        """`raw_shape` is that of images stored as their pixels, uint8; None if they are encoded."""
        super().__init__(len(shards), shape, channels, config)
        self.shards, self._config = shards, config
        self._num_classes = num_classes
        self._numbers = {normal_form(name): index for index, name in enumerate(config.class_names)}
        self._raw_shape = raw_shape
        self._rule, self._remedy = config.about_labels(num_classes)

    def joined_with(self, others: Sequence[Split]) -> RecordSplit:
        """Return all records of this split and of others, which are RecordSplits, in their order."""
        splits = [self, *(split for split in others if isinstance(split, RecordSplit))]
        shards = type(self.shards)([piece for split in splits for piece in split.shards.pieces])
        joined = RecordSplit(
            shards,
            self._config,
            num_classes=self._num_classes,
            shape=None,
            channels=self.channels,
            raw_shape=self._raw_shape,
        )
        joined.undecodable = self.undecodable
        return joined

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(self._fetch, [index], [tf.string, tf.int32])
        return tf.ensure_shape(images, [None]), tf.ensure_shape(labels, [None])

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        return self.shards.ranges

    def read_stored(self, index: int) -> tuple[bytes, int]:
        return self._read_examples(np.array([index]))[0]

    def name(self, index: int) -> str:
        return self.shards.name(index)

    def _fetch(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return encoded images, bytes [n], and labels, int32 [n]."""
        self.remember(index)
        try:
            images, labels = zip(*self._read_or_skip(index), strict=True)
        except DataError as error:
            self.failure = error
            raise
        return np.array(images, object), np.array(labels, np.int32)

    def _read_or_skip(self, index: np.ndarray) -> list[tuple[bytes, int]]:
        try:
            return self._read_examples(index)
        except UnreadableExample:
            if not self.skips:
                raise
        if len(index) == 1:
            return [_NOTHING]
        return [example for number in index for example in self._read_or_skip(number[None])]

    def _read_examples(self, index: np.ndarray) -> list[tuple[bytes, int]]:
        """Return images and labels. Raise BadExample for a record that is damaged or lacks one of them."""
        payloads = self.shards.read(index)
        return [self._parse(int(number), payload) for number, payload in zip(index, payloads, strict=True)]

    def _parse(self, index: int, payload: bytes) -> tuple[bytes, int]:
        try:
            features = tf.train.Example.FromString(payload).features.feature
        except DecodeError:
            features = {}
        if not features:
            raise UnreadableExample(self.name(index), "is not a tf.train.Example")
        return self._parse_image(index, features), self._parse_label(index, features)

    def _parse_image(self, index: int, features: Any) -> bytes:
        values = self._find_values(index, features, self._config.image_feature, "data.image_feature")
        if len(values) != 1 or not isinstance(values[0], bytes):
            raise BadExample(
                self.name(index),
                f"has no single bytes_list value called {self._config.image_feature!r}",
                _suggest_features("data.image_feature", features, features),
            )
        return values[0] if self._raw_shape is None else self._encode(index, values[0], self._raw_shape)

    def _encode(self, index: int, pixels: bytes, shape: list[int]) -> bytes:
        """Return the pixels as a PNG, which the pipeline decodes as others."""
        if len(pixels) != math.prod(shape):
            raise BadExample(
                self.name(index),
                f"holds {len(pixels)} bytes of pixels, and data.raw_shape={format_value(shape)} takes "
                f"{math.prod(shape)}",
                "correct data.raw_shape, or leave it out for images of a file format",
            )
        encoded: bytes = tf.io.encode_png(np.frombuffer(pixels, np.uint8).reshape(shape), compression=0).numpy()
        return encoded

    def _parse_label(self, index: int, features: Any) -> int:
        values = self._find_values(index, features, self._config.label_feature, "data.label_feature")
        try:
            if isinstance(values[0], bytes):
                return self._parse_text(values)
            label = values[0] if len(values) == 1 and isinstance(values[0], int) else self._parse_numbers(values)
        except BadLabels as bad:
            reason = f"has a label {self._config.label_feature!r} that {bad.reason}"
            others = features.keys() - {self._config.image_feature, self._config.label_feature}
            another = "; or " + _suggest_features("data.label_feature", features, others) if others else ""
            raise BadExample(self.name(index), reason, f"{bad.remedy}{another}") from bad
        if not 0 <= label < self._num_classes:
            raise BadExample(self.name(index), f"has label {label}, {self._rule}", self._remedy)
        return label

    def _parse_numbers(self, values: Any) -> int:
        """Return the class that a float or one-hot numbers tell."""
        if len(values) not in (1, self._num_classes):
            raise BadLabels(
                f"holds {len(values)} numbers", f"give one for each of data.num_classes={self._num_classes}"
            )
        return int(class_numbers(np.array([values]))[0])

    def _parse_text(self, texts: Any) -> int:
        """Return the class that a text names."""
        if len(texts) != 1:
            raise BadLabels(f"holds {len(texts)} texts", "an image has one class here, so give one text")
        text = str(class_texts(np.array(texts))[0])
        if not self._numbers:
            remedy = f"say which classes there are in their order, as in data.class_names=[{text},...]"
            raise BadLabels(f"is the text {text!r}", remedy)
        if text not in self._numbers:
            raise BadLabels(f"is the text {text!r}, not one of data.class_names", suggest_names(text, self._numbers))
        return self._numbers[text]

    def _find_values(self, index: int, features: Any, feature: str, key: str) -> Any:
        kind = features[feature].WhichOneof("kind") if feature in features else None
        values = getattr(features[feature], kind).value if kind else []
        if not values:
            raise BadExample(
                self.name(index), f"has no value called {feature!r}", _suggest_features(key, features, features)
            )
        return values


def _suggest_features(key: str, features: Any, names: Iterable[str]) -> str:
    kinds = ", ".join(f"{name} ({features[name].WhichOneof('kind')})" for name in sorted(names))
    return f"set {key} to one of its features: {kinds}"
