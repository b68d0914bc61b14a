"""The user's own TFRecord files of tf.train.Example, named by two globs."""

from __future__ import annotations

from glob import glob
from pathlib import Path

import tensorflow as tf

from accumtrain.data.byte_ranges import is_remote
from accumtrain.data.local_files import check_name
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
    first = train.inspect_first()
    if config.image_size is None:
        train.image_shape = test.image_shape = first.shape
    test.inspect_first()
    fingerprint = {"data.train.shards": train.shards.digest(), "data.test.shards": test.shards.digest()}
    return Source(train, test, config.num_classes, class_names=config.class_names, fingerprint=fingerprint)


def _open(config: TfrecordConfig, key: str, pattern: str) -> RecordSplit:
    paths = _matching(pattern)
    if not paths:
        raise DataError(f"{key}={pattern} matches no file: give TFRecord files, as in 'folder/train-*'")
    shards = TfrecordShards([ShardRange(path) for path in paths])
    if len(shards) == 0:
        raise DataError(f"{key}={pattern} matches {len(paths)} file(s) without a single record")
    split = RecordSplit(
        shards,
        config,
        num_classes=config.num_classes,
        image_shape=None,
        channels=_CHANNELS,
        raw_shape=config.raw_shape,
    )
    if config.raw_shape is None:
        split.undecodable += ", or set data.raw_shape=[height,width,channels] if these are pixels"
    return split


def _matching(pattern: str) -> list[str]:
    if is_remote(pattern):
        paths = [path for path in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(path)]
    else:
        # Path.glob takes no pattern with a root
        paths = [path for path in glob(pattern) if not Path(path).is_dir()]  # noqa: PTH207
    for path in paths:
        check_name(Path(path))
    return sorted(path for path in paths if not Path(path).name.startswith("."))
