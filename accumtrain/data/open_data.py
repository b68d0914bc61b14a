"""From a configuration to an opened data set, and from an error of a running pipeline to the file behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import tensorflow as tf

from accumtrain.data.config import DataConfig, TokenKeys
from accumtrain.data.holdout import add_validation_split
from accumtrain.data.images.augment import Mix
from accumtrain.data.images.encoded import EncodedSplit
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.pixels import make_pixels
from accumtrain.data.inputs.trained_on import read_trained_on
from accumtrain.data.source import SPLIT_WORDS, Dataset, Source, Stream, Wanted, compute_fingerprint
from accumtrain.data.sources.config import INPUTS, READERS, SOURCES
from accumtrain.data.targets.base import TargetReader
from accumtrain.data.text.config import DocumentRows
from accumtrain.errors import CheckpointError, ConfigError, DataError
from accumtrain.fields import CLASSES, format_value
from accumtrain.registry import load


def open_data(
    config: DataConfig,
    seed: int,
    targets: str = CLASSES,
    folder: Path | None = None,
    rows: DocumentRows | None = None,
) -> Dataset:
    """Open the data set that `config` names, with the targets as they are stored.

    Args:
        seed: decides the images of sources that make their own.
        targets: the form of the targets, one of those that the source can have.
        folder: that of the run that trains on it, which may have begun; None: there is no run.
        rows: the way in which texts become rows of tokens and of those that follow; None if they do not.

    Raises:
        ConfigError: Settings contradict each other or the images.
        DataError: Data is missing, not prepared, corrupt, or not as described.
    """
    wanted = Wanted(seed, make_reader(targets), begun=_read_begun(config, folder), rows=rows)
    source = open_source(config, wanted, targets)
    if isinstance(source, Dataset):  # examples that need no preparation
        return source
    if rows is None:  # those are of many texts, which were held out before
        source = add_validation_split(source, config)
    train = source.train
    for name, other in source.splits.items():
        if train.white != other.white:
            raise DataError(
                f"data={config.kind}: white is {train.white} in the training split and {other.white} in the "
                f"{SPLIT_WORDS[name]} split; open both splits with the same value"
            )
    if source.inputs is None:
        shape = train.shape if config.pixels is None else (*config.pixels, train.channels)
        assert shape is not None, "a source whose images keep their size has one shape"
        if len(shape) != 3:
            raise DataError(
                f"data={config.kind}: an example has the shape {list(shape)}, and an image has [height, width, "
                "channels]; give the Source its kind of inputs, such as inputs=accumtrain.Arrays(shape)"
            )
        inputs: Inputs = make_pixels(config, shape, train.white)
    else:
        inputs = source.inputs.fitted(source.train)
    _check_keys(config, inputs.kinds())
    held_out = {name: inputs.evaluated(split) for name, split in source.splits.items() if name != "train"}
    return Dataset(
        **{**vars(source), **held_out, "fingerprint": compute_fingerprint(source), "inputs": inputs},
        mix=Mix(config.mixup, config.cutmix),
        balanced=config.sampling == "balanced",
        by_length=isinstance(config, TokenKeys) and config.by_length,
        targets=targets,
    )


def _read_begun(config: DataConfig, folder: Path | None) -> Inputs | None:
    """Return the inputs of a run that has begun, of texts by a tokenizer's file; None of others.

    A damaged inputs.json tells nothing: the training writes a new one, if the data is that of the checkpoints.
    """
    if folder is None or not isinstance(config, TokenKeys) or config.tokenizer == TokenKeys.tokenizer:
        return None
    try:
        begun = read_trained_on(folder, config)
    except CheckpointError:
        return None
    return None if begun is None else begun.inputs


def _check_keys(config: DataConfig, kinds: Sequence[str]) -> None:
    """Raise ConfigError for a key of other inputs than those of some kinds that is not as by default."""
    own = {key for kind in kinds for key in config.OF_INPUTS.get(kind, ())}
    others = {key: inputs for inputs, keys in config.OF_INPUTS.items() for key in keys if key not in own}
    for key in fields(config):
        default = key.default if key.default_factory is MISSING else key.default_factory()
        if key.name in others and (value := getattr(config, key.name)) != default:
            meant: Any = load(INPUTS[others[key.name]].build)
            raise ConfigError(
                f"data.{key.name}={format_value(value)}: is for {meant.asked}, and the inputs of "
                f"data={config.kind} are others; leave it out"
            )


def open_source(config: DataConfig, wanted: Wanted, targets: str) -> Source:
    """Open the source that `config` names, with targets of a form."""
    entry = SOURCES[config.kind]
    source: Source = load(entry.openers.get(targets, entry.build))(config, wanted.seed if entry.takes_seed else wanted)
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
