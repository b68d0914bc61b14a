"""The weights that a run begins with: they are loaded into its model at update 0, and what was loaded is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.models.build import NOT
from accumtrain.runs.files import write_json
from accumtrain.tasks.objective import Objective
from accumtrain.train.build import build_window, model_for
from accumtrain.train.first_weights import KEY, FirstWeights, find_weights

REPORT = "weights.json"  # in the run's folder
SHOWN = 12  # rows of the report on the screen
LEAST_LOADED = 0.5  # share of the variables; a new head, or another stem, is less than the other half


@dataclass(frozen=True)
class Started:
    """`loaded`: paths with their array. `left`: path -> the reason for its initial value. `unused`: other arrays."""

    loaded: list[str]
    left: dict[str, str]
    unused: list[str]


def start_from(model: Model, arrays: Mapping[str, np.ndarray]) -> Started:
    """Assign every array to the variable of its path. A layer with a variable of another shape is left as it is."""
    reasons, odd = {}, defaultdict(list)
    for path, variable in model.named.items():
        if path not in arrays:
            reasons[path] = "not in the file"
        elif (shape := tuple(arrays[path].shape)) != tuple(variable.shape):
            reasons[path] = f"{_shape(shape)} there, {_shape(variable.shape)} here"
            odd[_layer(path)].append(path.rpartition("/")[2])
    loaded, left = [], {}
    for path, variable in model.named.items():
        if path in reasons:
            left[path] = reasons[path]
        elif _layer(path) in odd:
            left[path] = f"its layer's {odd[_layer(path)][0]} has another shape"
        else:
            variable.assign(arrays[path].astype(variable.dtype.as_numpy_dtype))
            loaded.append(path)
    return Started(loaded, left, sorted(arrays.keys() - model.named.keys()))


def _layer(path: str) -> str:
    return path.rpartition("/")[0]


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def digest(config: Config) -> dict[str, Any]:
    """Return the checksum of the weights that the run began with, for a manifest: of their content, not their path."""
    weights = find_weights(config)
    return {KEY: None if weights is None else weights.digest()}


def begin_with_weights(config: Config, model: Model) -> Started | None:
    """Load the weights that a run begins with into a model, before anything is built on its weights.

    Raises:
        ConfigError: there are no such weights, or hardly any of them fits the model.
        CheckpointError: they can't be read.
    """
    weights = find_weights(config)
    return None if weights is None else _load(weights, model, weights.read(None))


def _load(weights: FirstWeights, model: Model, arrays: Mapping[str, np.ndarray] | None) -> Started:
    started = start_from(model, weights.fit(model, arrays))
    _check_fits(weights, model, started)
    return started


def _check_fits(weights: FirstWeights, model: Model, started: Started) -> None:
    """Raise ConfigError if the weights are those of another model, or if frozen variables have got none."""
    given, own = weights.given, weights.config.model
    left = _without_added(model, started.left)
    total = len(_without_added(model, model.named))
    if total - len(left) < LEAST_LOADED * total:
        path = next(iter(left))
        raise ConfigError(
            f"{given}: {total - len(left)} of the {total} variables of {own.label} are in it, fewer than "
            f"{LEAST_LOADED:.0%} ({path}: {left[path]}); give weights of the same architecture, or the model that they "
            "are of"
        )
    frozen = {id(variable) for variable in model.frozen}
    random = [path for path in left if id(model.named[path]) in frozen]
    if random:
        back = [f"{NOT}{layer}/*" for layer in dict.fromkeys(map(_layer, random))]
        raise ConfigError(
            f"{given} does not have {len(random)} of the variables that are frozen (such as "
            f"{random[0]}: {left[random[0]]}), which would stay random; train them: "
            f"model.freeze=[{','.join([*own.freeze, *back])}]"
        )


def _without_added(model: Model, by_path: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not of adapters, which begin at their initial values if the weights have none."""
    added = model.added
    return {path: value for path, value in by_path.items() if path not in added}


def window_with_weights(
    config: Config, objective: Objective, total_steps: int, strategy: tf.distribute.Strategy
) -> tuple[Window, Started | None]:
    """Build all state of a run, at update 0, with its first weights loaded. Raise what `begin_with_weights` raises.

    Slots and averages are built on the loaded weights: some optimizers begin with a copy of them.
    """
    weights = find_weights(config)
    arrays = None if weights is None else weights.read(objective.stored.inputs)
    with strategy.scope():
        model = model_for(config, objective.stored)
        started = None if weights is None else _load(weights, model, arrays)
    del arrays  # they take as much memory as the model
    return build_window(config, objective, total_steps, strategy, model=model), started


def show_start(config: Config, started: Started, window: Window, folder: Path, *, writes: bool) -> None:
    """Print what was loaded, and write all of it to REPORT."""
    weights = find_weights(config)
    assert weights is not None, "else nothing was loaded"
    named, given = window.model.named, weights.given.partition("=")[2]
    values = sum(int(tf.size(named[path])) for path in started.loaded)
    total = sum(int(tf.size(variable)) for variable in named.values())
    say(
        f"{given}: {len(started.loaded)} of {len(named)} variables loaded, {values:,} of {total:,} values; all of them "
        f"are in {folder / REPORT}"
    )
    if weights.note:
        say(weights.note)
    left = _without_added(window.model, started.left)
    if left:
        table("at their initial values", ("variable", "why"), _first([*left.items()]))
    if len(left) < len(started.left):
        say(f"{len(started.left) - len(left)} variables of adapters begin at their initial values")
    if started.unused:
        table("in the file and not used", ("name",), _first([(name,) for name in started.unused]))
    if writes:
        write_json(folder / REPORT, {"weights": given, **digest(config), **vars(started)})


def _first(rows: list[Any]) -> list[Any]:
    """Return the first rows, and the number of the others."""
    rest = len(rows) - SHOWN
    return rows if rest <= 0 else [*rows[:SHOWN], (f"and {rest} more", *[""] * (len(rows[0]) - 1))]
