"""The user's own TFRecord files of tf.train.Example, named by two globs."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from accumtrain.data.byte_ranges import is_remote
from accumtrain.data.records import RecordSplit
from accumtrain.data.shards import ShardRange, TfrecordShards
from accumtrain.data.source import Source
from accumtrain.errors import DataError
from accumtrain.kinds.sources import TfrecordConfig

_CHANNELS = 3


def open_tfrecord(config: TfrecordConfig, seed: int) -> Source:
    """The splits that two globs name.

    Raises:
        DataError: No file matches, a file is truncated or no TFRecord file, or a feature is missing.
    """
    train = _open(config, "data.path", config.path)
    test = _open(config, "data.test_path", config.test_path)
    if config.image_size is None:
        train.fix_shape()
        test.image_shape = train.image_shape
    test.inspect(0)
    return Source(train, test, config.num_classes)


def _open(config: TfrecordConfig, key: str, pattern: str) -> RecordSplit:
    paths = _matching(pattern)
    if not paths:
        raise DataError(f"{key}={pattern} matches no file: give TFRecord files, as in 'folder/train-*'")
    shards = TfrecordShards([ShardRange(path) for path in paths])
    if len(shards) == 0:
        raise DataError(f"{key}={pattern} matches {len(paths)} file(s) without a single record")
    split = RecordSplit(
        shards,
        image_feature=config.image_feature,
        label_feature=config.label_feature,
        num_classes=config.num_classes,
        image_shape=None,
        channels=_CHANNELS,
    )
    split.inspect(0)
    return split


def _matching(pattern: str) -> list[str]:
    pattern = pattern if is_remote(pattern) else str(Path(pattern).expanduser())
    paths = sorted(tf.io.gfile.glob(pattern))
    return [path for path in paths if not Path(path).name.startswith(".") and not tf.io.gfile.isdir(path)]
