"""All examples of a data set that a run was not trained on, as one split, labelled with the classes of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.data.inputs.pixels import Pixels
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.local_files import list_first
from accumtrain.data.open_data import make_reader, open_source
from accumtrain.data.source import Dataset, Source, Split, Wanted
from accumtrain.data.targets.labels import LabelTargets
from accumtrain.data.targets.numbers import NumberTargets
from accumtrain.data.text.config import DocumentRows
from accumtrain.errors import DataError
from accumtrain.fields import CLASSES, TOKENS, normal_form


def open_labelled(
    config: DataConfig, of_run: TrainedOn, trained: Mapping[str, Any], seed: int, rows: DocumentRows | None = None
) -> Dataset:
    """Return the examples of all splits but those that are the run's own, as one test split with the labels of the run.

    Args:
        config: the data to measure, with the preprocessing of the run.
        of_run: the inputs and targets of the run. Its classes may be without an example. Labels and numbers must have
            its names.
        trained: the fingerprint of the run's data.
        rows: see `open_data`.

    Raises:
        ConfigError: A key asks for other inputs than those of the run.
        DataError: the data can't be opened, or has inputs or a class that the run was not trained on.
    """
    reader = make_reader(of_run.form)
    if isinstance(reader, LabelTargets | NumberTargets):
        reader = replace(reader, names=of_run.class_names)
    keys = of_run.inputs.adapt(config)
    source = open_source(keys, Wanted(seed, reader, of_run, rows=rows), of_run.form)
    kind = Pixels.kind if source.inputs is None else source.inputs.kind
    if kind != of_run.inputs.kind:
        raise DataError(
            f"data={config.kind}: its inputs are {kind}, those that the run was trained on {of_run.inputs.kind}; give "
            "such data"
        )
    first, *others = _select_new_splits(source, trained)
    split = first.joined_with(others) if others else first
    inputs = of_run.inputs.match(split, keys)
    return Dataset(
        train=split,
        test=inputs.evaluated(split),
        num_classes=len(of_run.class_names),
        inputs=inputs,
        notes=source.notes,
        class_names=of_run.class_names,
        targets=of_run.form,
        to_target=_map_targets(config, source, of_run),
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


def _map_targets(config: DataConfig, source: Source, of_run: TrainedOn) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Return the function from targets of the source to the run's; None if they are the same.

    A class becomes that of the same name, or of the same number.

    Raises:
        DataError: the run was not trained on a class of the source, or on others than its labels or numbers.
    """
    own, names = source.classes, of_run.class_names
    if of_run.form != CLASSES:
        if of_run.form != TOKENS and own != names:
            raise DataError(
                f"data={config.kind}: its targets are {list_first(own)}, the run was trained on {list_first(names)}; "
                "give such data"
            )
        return None
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
