"""From a configuration to an opened data set, and from an error of a running pipeline to the file behind it."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

import tensorflow as tf

from accumtrain.data.config import READERS, SOURCES, DataConfig, TokensConfig
from accumtrain.data.holdout import add_validation_split
from accumtrain.data.images.augment import Mix
from accumtrain.data.images.encoded import EncodedSplit
from accumtrain.data.preprocess import make_preprocess
from accumtrain.data.source import SPLIT_WORDS, Dataset, PlainData, Source, Stream, compute_fingerprint
from accumtrain.data.sources.targets import TargetReader
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import format_value
from accumtrain.registry import load
from accumtrain.tasks.config import CLASSES

_OF_ALL_INPUTS = {"kind", "sampling", "val_fraction", "on_error"}  # keys of every source that are not of images alone


def open_data(config: DataConfig, seed: int, targets: str = CLASSES) -> Dataset:
    """Open the data set that `config` names, with the targets as they are stored.

    Args:
        seed: decides the images of sources that make their own.
        targets: the form of the targets, one of those that the source can have.

    Raises:
        ConfigError: Settings contradict each other or the images.
        DataError: Data is missing, not prepared, corrupt, or not as described.
    """
    source = open_source(config, seed, targets)
    if isinstance(source, Dataset):  # examples that need no preparation
        return source
    source = add_validation_split(source, config)
    train = source.train
    for name, other in source.splits.items():
        if train.white != other.white:
            raise DataError(
                f"data={config.kind}: white is {train.white} in the training split and {other.white} in the "
                f"{SPLIT_WORDS[name]} split; open both splits with the same value"
            )
    fingerprint = compute_fingerprint(source)
    if source.plain:
        _check_keys_of_images(config)
        data = PlainData(
            **{**vars(source), "fingerprint": fingerprint},
            shape=tuple(train.shape or ()),
            balanced=config.sampling == "balanced",
            targets=targets,
        )
        if isinstance(config, TokensConfig):
            return replace(data, by_length=config.by_length, buckets=config.buckets)
        return data
    shape = train.shape if config.pixels is None else (*config.pixels, train.channels)
    assert shape is not None, "a source whose images keep their size has one shape"
    return Dataset(
        **{**vars(source), "fingerprint": fingerprint},
        shape=shape,
        preprocess=make_preprocess(config, channels=train.channels, white=train.white),
        mix=Mix(config.mixup, config.cutmix),
        balanced=config.sampling == "balanced",
        targets=targets,
    )


def _check_keys_of_images(config: DataConfig) -> None:
    """Raise ConfigError for a key of images that is not as by default: the inputs are no images."""
    of_images = {key.name for key in fields(DataConfig)} - _OF_ALL_INPUTS
    for key in fields(config):
        default = key.default if key.default_factory is MISSING else key.default_factory()
        if key.name in of_images and (value := getattr(config, key.name)) != default:
            raise ConfigError(
                f"data.{key.name}={format_value(value)}: is for images, and the inputs of data={config.kind} are "
                "others; leave it out"
            )


def open_source(config: DataConfig, seed: int, targets: str) -> Source:
    """Open a source with targets of a form. A source that has several forms takes the reader of one."""
    readers = [make_reader(targets)] if len(SOURCES[config.kind].targets) > 1 else []
    source: Source = SOURCES.build(config, seed, *readers)
    return source


def make_reader(targets: str) -> TargetReader | None:
    """Return the reader of a form of targets; None of one that is not read, such as tokens."""
    reader: TargetReader | None = load(READERS[targets])() if targets in READERS else None
    return reader


def explain_input_error(error: tf.errors.OpError, data: Dataset) -> DataError | None:
    """Return the DataError behind an error raised while iterating over batches of `data`; None if it has another cause.

    This decodes the examples read last again, which takes some seconds for large images.
    """
    if isinstance(error, (tf.errors.ResourceExhaustedError, tf.errors.CancelledError)):
        return None
    splits = data.whole_splits.values()
    for split in splits:
        if isinstance(split, EncodedSplit):
            try:
                split.inspect_recent()
            except DataError as found:
                return found
    streams = [split for split in splits if isinstance(split, Stream)]
    for stream in sorted(streams, key=lambda stream: stream.failure is None):  # the one that has failed first
        if (explained := stream.explain(error)) is not None:
            return explained
    return None
