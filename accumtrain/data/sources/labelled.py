"""All examples of a data set that a run was not trained on, as one split, labelled with the classes of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.data.config import SOURCES, DataConfig, FolderConfig, NpzConfig, TableConfig, TextsConfig, TokenKeys
from accumtrain.data.images.encoded import EncodedSplit
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.pixels import Pixels, make_pixels
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.local_files import list_first, readable
from accumtrain.data.open_data import make_reader
from accumtrain.data.source import ArraySplit, Dataset, Source, Split
from accumtrain.data.sources.folder import list_all, list_by_class, make_source
from accumtrain.data.sources.npz import open_npz, open_whole_tokens
from accumtrain.data.sources.records.tfrecord import RecordSplit
from accumtrain.data.sources.texts import open_whole_texts
from accumtrain.data.table.source import open_whole_table
from accumtrain.data.targets import LabelTargets, NumberTargets, TargetReader
from accumtrain.data.text.token_split import TokenSplit, join
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import CLASSES, format_value, normal_form


def open_labelled(config: DataConfig, of_run: TrainedOn, trained: Mapping[str, Any], seed: int) -> Dataset:
    """Return the examples of all splits but those that are the run's own, as one test split with the labels of the run.

    Images are resized to those of the run.

    Args:
        config: the data to measure, with the preprocessing of the run.
        of_run: the inputs and targets of the run. Its classes may be without an example. Labels and numbers must have
            its names.
        trained: the fingerprint of the run's data.

    Raises:
        DataError: the data can't be opened, or has a class that the run was not trained on.
    """
    reader = make_reader(of_run.form)
    if isinstance(reader, LabelTargets | NumberTargets):
        reader = replace(reader, names=of_run.class_names)
    if isinstance(of_run.inputs, Tokens) and isinstance(config, TokenKeys):
        return _open_tokens(config, of_run, of_run.inputs, trained, reader)
    if not isinstance(of_run.inputs, Pixels):
        return _open_plain(config, of_run, trained, seed, reader)
    height, width, channels = of_run.inputs.shape
    config = replace(config, image_size=[height, width])
    if isinstance(config, FolderConfig):
        with readable():
            listing, notes = list_all(config)
        source = make_source({"train": list_by_class(listing)}, list(listing), notes, config)
    elif isinstance(config, TableConfig) and reader:
        source = open_whole_table(config, reader)
    elif isinstance(config, NpzConfig) and reader:
        source = open_npz(config, seed, reader)
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
    return _as_dataset(split, make_pixels(config, of_run.inputs.shape, split.white), of_run, source, config)


def _as_dataset(split: Split, inputs: Inputs, of_run: TrainedOn, source: Source, config: DataConfig) -> Dataset:
    """Return a split as the test split of a data set with the targets of the run."""
    return Dataset(
        train=split,
        test=split,
        num_classes=len(of_run.class_names),
        inputs=inputs,
        notes=source.notes,
        class_names=of_run.class_names,
        targets=of_run.form,
        to_target=_label_map(config, source, of_run.class_names) if of_run.form == CLASSES else None,
    )


def _open_plain(
    config: DataConfig, of_run: TrainedOn, trained: Mapping[str, Any], seed: int, reader: TargetReader | None
) -> Dataset:
    if isinstance(config, TableConfig) and isinstance(of_run.inputs, Arrays):
        columns = of_run.inputs.columns
        given = config.number_columns or []
        if given != config.ALL and any(isinstance(name, str) and normal_form(name) not in columns for name in given):
            raise ConfigError(
                f"data.number_columns={format_value(given)}: the run has learned from {', '.join(columns)}, columns "
                "that are found by their names; leave data.number_columns out, and call the columns of the table so"
            )
        source = open_whole_table(replace(config, number_columns=[*columns]), reader)
    else:
        source = SOURCES.build(config, seed)
    split = _join_splits(_select_new_splits(source, trained), config)
    if split.shape != of_run.inputs.shape or source.classes != of_run.class_names:
        raise DataError(
            f"data={config.kind}: its inputs have the shape {list(split.shape or ())} and its targets are "
            f"{list_first(source.classes)}; the run was trained on {list(of_run.inputs.shape)} "
            f"and {list_first(of_run.class_names)}; give such data"
        )
    return _as_dataset(split, of_run.inputs, of_run, source, config)


def _open_tokens(
    config: TokenKeys, of_run: TrainedOn, tokens: Tokens, trained: Mapping[str, Any], reader: TargetReader | None
) -> Dataset:
    keys = replace(config, length=tokens.shape[0], buckets=[])
    if isinstance(keys, TableConfig):
        source = open_whole_table(keys, reader, tokens.vocabulary)
    elif isinstance(keys, NpzConfig):
        source = open_whole_tokens(keys, tokens.vocabulary, reader)
    else:
        assert isinstance(keys, TextsConfig)
        source = open_whole_texts(keys, tokens.vocabulary, reader)
    split = join([split for split in _select_new_splits(source, trained) if isinstance(split, TokenSplit)])
    return _as_dataset(split, replace(tokens, masks=0), of_run, source, config)


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


def _label_map(config: DataConfig, source: Source, names: list[str]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the function from labels of the source to the run's: of the class of the same name, or of the same number.

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
        return partial(tf.gather, list(range(source.num_classes)))
    if unknown := [name for name in own if normal_form(name) not in known]:
        raise DataError(
            f"data={config.kind} has the class {list_first(unknown)}, on which the run was not trained (it knows "
            f"{list_first(names)}); leave out its examples, or name it as the run does"
        )
    return partial(tf.gather, [known[normal_form(name)] for name in own])
