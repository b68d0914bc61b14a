"""Config -> `Dataset`; errors of the input in the user's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.data.augment import Mix
from accumtrain.data.config import SOURCES, DataConfig, FolderConfig, TableConfig
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.holdout import with_validation
from accumtrain.data.preprocess import make_preprocess
from accumtrain.data.source import SPLIT_WORDS, ArraySplit, Dataset, Source, Split, fingerprint_of
from accumtrain.data.sources.folder import list_all, source_of_all
from accumtrain.data.sources.image_table import list_table
from accumtrain.data.sources.listing import first_of, readable
from accumtrain.data.sources.tfrecord import RecordSplit
from accumtrain.errors import DataError
from accumtrain.fields import normal_form
from accumtrain.runs.run import Images

# From a source's configuration to an opened data set.


def open_data(config: DataConfig, seed: int) -> Dataset:
    """Opens the data set that `config` names. `seed` decides the images of sources that make their own.

    Raises:
        ConfigError: Settings that contradict each other or the images.
        DataError: Data that is missing, not prepared, corrupt, or not as described.
    """
    source: Source | Dataset = SOURCES.build(config, seed)
    if isinstance(source, Dataset):  # examples that need no preparation
        return source
    source = with_validation(source, config)
    train = source.train
    for name, other in source.splits.items():
        if train.white != other.white:
            raise DataError(
                f"data={config.kind}: pixels of 1.0 are {train.white} in the training split and {other.white} in the "
                f"{SPLIT_WORDS[name]} split; both splits must mean the same"
            )
    preprocess = make_preprocess(config, channels=train.channels, white=train.white)
    shape = train.image_shape if config.pixels is None else (*config.pixels, train.channels)
    assert shape is not None, "a source whose images keep their size has one shape"
    return Dataset(
        train=train,
        test=source.test,
        val=source.val,
        num_classes=source.num_classes,
        image_shape=shape,
        preprocess=preprocess,
        notes=source.notes,
        class_names=source.class_names,
        fingerprint=fingerprint_of(source),
        mix=Mix(config.mixup, config.cutmix),
        balanced=config.sampling == "balanced",
    )


# Finds the file behind a TensorFlow error that a running pipeline has raised.


def explain_input_error(error: tf.errors.OpError, data: Dataset) -> DataError | None:
    """The DataError behind an error raised while iterating over batches of `data`; None if it has another cause.

    It decodes the examples read last again, which takes some seconds for large images.
    """
    if isinstance(error, (tf.errors.ResourceExhaustedError, tf.errors.CancelledError)):
        return None
    for split in data.whole_splits.values():
        if isinstance(split, EncodedSplit):
            try:
                split.inspect_recent()
            except DataError as found:
                return found
    return None


# All examples of a data set that was not trained on, as one split, labelled with the classes of a run.


def open_labelled(config: DataConfig, images: Images, trained: Mapping[str, Any], seed: int) -> Dataset:
    """The examples of all splits but those that are the run's own, as the test split of what is returned.

    Images are resized to those of the run.

    Args:
        config: the data to measure, with the preprocessing of the run.
        images: what the run was trained on. Its classes may be without an example.
        trained: the fingerprint of the run's data.

    Raises:
        DataError: the data can't be opened, or has a class that the run was not trained on.
    """
    height, width, channels = images.shape
    config = replace(config, image_size=[height, width])
    if isinstance(config, FolderConfig | TableConfig):
        with readable():
            listing, notes = list_all(config) if isinstance(config, FolderConfig) else list_table(config)
        source = source_of_all(listing, notes, config)
    else:
        source = SOURCES.build(config, seed)
    split = _joined(_new_splits(source, trained), config)
    if isinstance(split, EncodedSplit):
        split.channels = channels
    elif split.channels != channels:
        raise DataError(
            f"data={config.kind}: its images have {split.channels} channel(s), the run was trained on {channels}; give "
            f"images with {channels}"
        )
    labels = _labels(config, source, images.class_names)
    return Dataset(
        train=split,
        test=split,
        num_classes=len(images.class_names),
        image_shape=images.shape,
        preprocess=make_preprocess(config, channels=channels, white=split.white),
        notes=source.notes,
        class_names=images.class_names,
        labels=labels,
    )


def _new_splits(source: Source, trained: Mapping[str, Any]) -> list[Split]:
    """All splits but those of which the run has had the files; a note of the source names these."""
    new, had = list[Split](), list[str]()
    for name, split in source.splits.items():
        facts = {key: value for key, value in source.fingerprint.items() if key.startswith(f"data.{name}.")}
        if facts and facts.items() <= trained.items():
            had.append(name)
        else:
            new.append(split)
    if not new:
        return list(source.splits.values())
    if had:
        source.notes.append(f"left out, as the run has had its files: {' and '.join(had)}")
    return new


def _joined(splits: list[Split], config: DataConfig) -> Split:
    """All examples of the splits, in their order."""
    first, *others = splits
    if not others:
        return first
    if isinstance(first, RecordSplit):
        return first.joined_with([split for split in others if isinstance(split, RecordSplit)])
    if isinstance(first, EncodedSplit):
        raise DataError(
            f"data={config.kind} has {len(splits)} splits of images that can't be put together: give data with one"
        )
    images, labels = zip(*(split.read(tf.range(split.size, dtype=tf.int64)) for split in splits), strict=True)
    return ArraySplit(np.concatenate(images), np.concatenate(labels), first.white)


def _labels(config: DataConfig, source: Source, names: list[str]) -> list[int]:
    """The run's label of each label of the source: of the class of the same name, or number if the source has none.

    Raises:
        DataError: the run was not trained on a class of the source.
    """
    own = source.class_names or [str(number) for number in range(source.num_classes)]
    known = {normal_form(name): label for label, name in enumerate(names)}
    if not source.class_names and not known.keys() >= set(own):
        if source.num_classes > len(names):
            raise DataError(
                f"data={config.kind}: its labels are 0..{source.num_classes - 1}, those of the run 0..{len(names) - 1} "
                f"({first_of(names)}); leave out the examples of other classes"
            )
        source.notes.append(f"its labels are numbers, in the order of the run's classes: {first_of(names)}")
        return list(range(source.num_classes))
    if unknown := [name for name in own if normal_form(name) not in known]:
        raise DataError(
            f"data={config.kind} has the class {first_of(unknown)}, on which the run was not trained (it knows "
            f"{first_of(names)}); leave out its examples, or name it as the run does"
        )
    return [known[normal_form(name)] for name in own]
