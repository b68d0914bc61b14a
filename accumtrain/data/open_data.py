"""From a configuration to an opened data set, and from an error of a running pipeline to the file behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.data.augment import Mix
from accumtrain.data.config import SOURCES, DataConfig, FolderConfig, TableConfig
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.holdout import add_validation_split
from accumtrain.data.local_files import list_first, readable
from accumtrain.data.preprocess import make_preprocess
from accumtrain.data.source import SPLIT_WORDS, ArraySplit, Dataset, Source, Split, compute_fingerprint
from accumtrain.data.sources.folder import list_all, make_single_split_source
from accumtrain.data.sources.image_table import list_table
from accumtrain.data.sources.tfrecord import RecordSplit
from accumtrain.errors import DataError
from accumtrain.fields import normal_form
from accumtrain.runs.run import Images


def open_data(config: DataConfig, seed: int) -> Dataset:
    """Open the data set that `config` names. `seed` decides the images of sources that make their own.

    Raises:
        ConfigError: Settings contradict each other or the images.
        DataError: Data is missing, not prepared, corrupt, or not as described.
    """
    source: Source = SOURCES.build(config, seed)
    if isinstance(source, Dataset):  # examples that need no preparation
        return source
    source = add_validation_split(source, config)
    train = source.train
    for name, other in source.splits.items():
        if train.white != other.white:
            raise DataError(
                f"data={config.kind}: pixels of 1.0 are {train.white} in the training split and {other.white} in the "
                f"{SPLIT_WORDS[name]} split; both splits must mean the same"
            )
    shape = train.image_shape if config.pixels is None else (*config.pixels, train.channels)
    assert shape is not None, "a source whose images keep their size has one shape"
    return Dataset(
        train=train,
        test=source.test,
        val=source.val,
        num_classes=source.num_classes,
        image_shape=shape,
        preprocess=make_preprocess(config, channels=train.channels, white=train.white),
        notes=source.notes,
        class_names=source.class_names,
        fingerprint=compute_fingerprint(source),
        mix=Mix(config.mixup, config.cutmix),
        balanced=config.sampling == "balanced",
    )


def explain_input_error(error: tf.errors.OpError, data: Dataset) -> DataError | None:
    """Return the DataError behind an error raised while iterating over batches of `data`; None if it has another cause.

    This decodes the examples read last again, which takes some seconds for large images.
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


# ---- data that a run was not trained on ----


def open_labelled(config: DataConfig, images: Images, trained: Mapping[str, Any], seed: int) -> Dataset:
    """Return the examples of all splits but those that are the run's own, as one test split with the labels of the run.

    Images are resized to those of the run.

    Args:
        config: the data to measure, with the preprocessing of the run.
        images: those that the run was trained on. Its classes may be without an example.
        trained: the fingerprint of the run's data.

    Raises:
        DataError: the data can't be opened, or has a class that the run was not trained on.
    """
    height, width, channels = images.shape
    config = replace(config, image_size=[height, width])
    if isinstance(config, FolderConfig | TableConfig):
        with readable():
            listing, notes = list_all(config) if isinstance(config, FolderConfig) else list_table(config)
        source = make_single_split_source(listing, notes, config)
    else:
        source = SOURCES.build(config, seed)
    split = _join_splits(_select_new_splits(source, trained), config)
    if isinstance(split, EncodedSplit):
        split.channels = channels
    elif split.channels != channels:
        raise DataError(
            f"data={config.kind}: its images have {split.channels} channel(s), the run was trained on {channels}; give "
            f"images with {channels}"
        )
    labels = _map_labels(config, source, images.class_names)
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


def _select_new_splits(source: Source, trained: Mapping[str, Any]) -> list[Split]:
    """Return all splits but those of which the run has had the files; a note of the source names these."""
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


def _join_splits(splits: list[Split], config: DataConfig) -> Split:
    """Return all examples of the splits, in their order."""
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


def _map_labels(config: DataConfig, source: Source, names: list[str]) -> list[int]:
    """Return the run's label for each label of the source: of the class of the same name, or of the same number.

    Raises:
        DataError: the run was not trained on a class of the source.
    """
    own = source.classes
    known = {normal_form(name): label for label, name in enumerate(names)}
    if not source.class_names and not known.keys() >= set(own):
        if source.num_classes > len(names):
            raise DataError(
                f"data={config.kind}: its labels are 0..{source.num_classes - 1}, those of the run 0..{len(names) - 1} "
                f"({list_first(names)}); leave out the examples of other classes"
            )
        source.notes.append(f"its labels are numbers, in the order of the run's classes: {list_first(names)}")
        return list(range(source.num_classes))
    if unknown := [name for name in own if normal_form(name) not in known]:
        raise DataError(
            f"data={config.kind} has the class {list_first(unknown)}, on which the run was not trained (it knows "
            f"{list_first(names)}); leave out its examples, or name it as the run does"
        )
    return [known[normal_form(name)] for name in own]
