"""The weights that a run begins with (model.weights)."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.imagenet import IMAGENET, show_pixels
from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.data.config import TokenKeys
from accumtrain.data.inputs.base import Inputs
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.models.build import NOT
from accumtrain.models.config import KerasModelConfig, TransformerConfig
from accumtrain.runs.checkpoint_store import best_first, crc32c_of
from accumtrain.runs.contents import read_run_config
from accumtrain.runs.files import write_json
from accumtrain.runs.names import CHECKPOINTS, folder_of
from accumtrain.tasks.objective import Objective
from accumtrain.train.build import build_window, model_for
from accumtrain.train.checkpoint import again_if_changed, find_state


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
        elif tuple(arrays[path].shape) != tuple(variable.shape):
            reasons[path] = f"{_shape(arrays[path].shape)} there, {_shape(variable.shape)} here"
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


# ---- model.weights, read once, at update 0 ---------------------------------------------------------------------------

KEY = "model.weights"
REPORT = "weights.json"  # in the run's folder
SHOWN = 12  # rows of the report on the screen
LEAST_LOADED = 0.5  # share of the variables; a new head, or another stem, is less than the other half


def place_of_weights(config: Config) -> Path | None:
    """Return the folder of a run, or the file, that model.weights names; None without it and for `imagenet`.

    Raises:
        ConfigError: there is none, or it is the run itself.
    """
    text = config.model.weights
    if text is None or text == IMAGENET:
        return None
    given, named = Path(text), Path(config.run.dir) / text
    found = next((path for path in (given, named) if path.is_file() or (path / "config.yaml").is_file()), None)
    if found is None:
        raise ConfigError(
            f"{KEY}={text}: neither a file, nor a run's folder, nor the name of a run in {config.run.dir}; give one of "
            "these"
        )
    if found.resolve() == folder_of(config).resolve():
        raise ConfigError(f"{KEY}={text}: that is this run itself; leave it out to continue the run")
    if found.is_file() and config.model.kind != "keras":
        raise ConfigError(
            f"{KEY}={text}: a file holds weights of keras.applications, for model=keras; give a run for "
            f"{config.model.label}"
        )
    return found


def digest(config: Config) -> dict[str, Any]:
    """Return the checksum of the weights that the run began with, for a manifest: of their content, not their path.

    For published weights it is the word `imagenet`, as model.name says the rest. A run that goes on need not find them.
    """
    place = place_of_weights(config)
    if place is None:
        return {KEY: config.model.weights}
    if place.is_file():
        with place.open("rb") as content:
            return {KEY: f"crc32c {crc32c_of(content)}"}
    folder = _checkpoints(config, place)
    _, manifest = again_if_changed(lambda: find_state(folder))
    sums = [entry["crc32c"] for _, entry in sorted(manifest["files"].items())]
    return {KEY: f"crc32c {' '.join(sums)}"}


def _checkpoints(config: Config, place: Path) -> Path:
    """Return the folder of the checkpoints of the run at `place`.

    Raises:
        ConfigError: it holds none.
    """
    folder = place / CHECKPOINTS
    if not best_first(folder):
        raise ConfigError(f"{KEY}={config.model.weights}: no checkpoint in {folder}; train that run first")
    return folder


def read_weights(config: Config, inputs: Inputs | None = None) -> Mapping[str, Any] | None:
    """Return the arrays of the run that model.weights names, or of `imagenet`, by path; None for a file, or null.

    It builds their model and frees it again before the window is built, so a memory limit need not hold both.

    Args:
        inputs: those of the data; None if they are not known.

    Raises:
        ConfigError: the attention of that run has another number of heads.
        AccumtrainError: there is no such run, its checkpoints can't be read, or published weights can't be had.
    """
    if config.model.weights == IMAGENET:
        return _read_published(config)
    place = place_of_weights(config)
    if place is None or place.is_file():
        return None
    from accumtrain.train.trained.load import find_trained_on, trained_model  # here, as most runs begin with none

    _checkpoints(config, place)
    source = read_run_config(place)
    _check_heads(config, source)
    if show_pixels(source.data) != show_pixels(config.data):
        say(
            f"{config.model.weights} was trained on pixels with {show_pixels(source.data)}, and this run has "
            f"{show_pixels(config.data)}; where the images are alike, give the former"
        )
    with tf.device("CPU"):
        noted, fingerprint = find_trained_on(source)
        _warn_of_other_tokens(config, noted.inputs, inputs)
        model = trained_model(source, noted, fingerprint).model
        arrays = {path: np.array(variable) for path, variable in model.named.items()}  # copies
        del model
        gc.collect()  # frees its memory, as a model's objects refer to each other
    return arrays


def _check_heads(config: Config, source: Config) -> None:
    """Raise ConfigError if kernels of attention fit, and would be divided among another number of heads."""
    own, theirs = config.model, source.model
    if isinstance(own, TransformerConfig) and isinstance(theirs, TransformerConfig) and own.heads != theirs.heads:
        raise ConfigError(
            f"model.heads={own.heads}: the run that {KEY}={own.weights} names has {theirs.heads}, and its attention is "
            f"another one with {own.heads}; give model.heads={theirs.heads}"
        )


def _warn_of_other_tokens(config: Config, before: Inputs, now: Inputs | None) -> None:
    """Warn if the ids of tokens are those of another tokenizer, whose table may have the same size."""
    vocabularies = [inputs.texts().get("vocabulary") for inputs in (before, now) if inputs is not None]
    tokenizers = [vocabulary["tokenizer"] for vocabulary in vocabularies if vocabulary is not None]
    if len(tokenizers) < 2 or len(set(tokenizers)) == 1:
        return
    theirs, own = map(_name_tokenizer, tokenizers)
    own = "those of another" if own == theirs else own
    warn(
        f"{config.model.weights} was trained on {theirs}, and this run has {own}: where an id is another token, "
        "it begins with the weights of that; give the data and data.tokenizer as there"
    )


def _name_tokenizer(tokenizer: str) -> str:
    return {TokenKeys.tokenizer: "bytes", "": "ids of no tokenizer"}.get(tokenizer, "the tokens of a tokenizer.json")


def begin_with_weights(config: Config, model: Model, arrays: Mapping[str, Any] | None = None) -> Started | None:
    """Load model.weights into a model, before anything is built on its weights.

    Args:
        arrays: of `read_weights`, if it was called.

    Raises:
        ConfigError: there are no such weights, or hardly any of them fits the model.
        CheckpointError: they can't be read.
    """
    if config.model.weights is None:
        return None
    arrays = arrays or read_weights(config) or _read_file(config, model)
    started = start_from(model, arrays)
    _check_colours(config, model, arrays)
    _check_fits(config, model, started)
    return started


def _check_colours(config: Config, model: Model, arrays: Mapping[str, Any]) -> None:
    """Raise ConfigError if published weights, which are of colour images, have a first kernel for other channels."""
    if config.model.weights != IMAGENET:
        return
    path = next(path for path, variable in model.named.items() if len(variable.shape) == 4)
    channels, theirs = model.named[path].shape[2], arrays[path].shape[2]
    if channels != theirs:
        raise ConfigError(
            f"{KEY}={IMAGENET}: weights of {config.model.label} are for images of {theirs} channels, and these have "
            f"{channels}; give colour images, or leave {KEY} out"
        )


def _check_fits(config: Config, model: Model, started: Started) -> None:
    """Raise ConfigError if the weights are those of another model, or if frozen variables have got none."""
    if len(started.loaded) < LEAST_LOADED * len(model.named):
        path, reason = next(iter(started.left.items()))
        raise ConfigError(
            f"{KEY}={config.model.weights}: {len(started.loaded)} of the {len(model.named)} variables of "
            f"{config.model.label} are in it, fewer than {LEAST_LOADED:.0%} ({path}: {reason}); give weights of "
            "the same architecture, or the model that they are of"
        )
    frozen = {id(variable) for variable in model.frozen}
    random = [path for path in started.left if id(model.named[path]) in frozen]
    if random:
        back = [f"{NOT}{layer}/*" for layer in dict.fromkeys(map(_layer, random))]
        raise ConfigError(
            f"{KEY}={config.model.weights} does not have {len(random)} of the variables that model.freeze keeps as "
            f"they are (such as {random[0]}: {started.left[random[0]]}), which would stay random; train them: "
            f"model.freeze=[{','.join([*config.model.freeze, *back])}]"
        )


def window_with_weights(
    config: Config, objective: Objective, total_steps: int, strategy: tf.distribute.Strategy
) -> tuple[Window, Started | None]:
    """Build all state of a run, at update 0, with model.weights loaded. Raise what `begin_with_weights` raises.

    Slots and averages are built on the loaded weights: some optimizers begin with a copy of them.
    """
    arrays = read_weights(config, objective.stored.inputs)
    with strategy.scope():
        model = model_for(config, objective.stored)
        started = begin_with_weights(config, model, arrays)
    del arrays  # they take as much memory as the model
    return build_window(config, objective, total_steps, strategy, model=model), started


def _read_file(config: Config, model: Model) -> Mapping[str, Any]:
    # Keras takes a second to import, and no other run needs it
    from accumtrain.models.keras.applications import read_keras_file
    from accumtrain.models.keras.model import KerasModel

    place = place_of_weights(config)
    assert place is not None
    assert isinstance(model, KerasModel), "place_of_weights refuses others"
    return read_keras_file(place, model.whole())


def _read_published(config: Config) -> Mapping[str, Any]:
    from accumtrain.models.keras.applications import read_published

    assert isinstance(config.model, KerasModelConfig), "check_config refuses others"
    with tf.device("CPU"):
        arrays = read_published(config.model)
        gc.collect()
    return arrays


def show_start(config: Config, started: Started, window: Window, folder: Path, *, writes: bool) -> None:
    """Print what was loaded, and write all of it to REPORT."""
    named = window.model.named
    values = sum(int(tf.size(named[path])) for path in started.loaded)
    total = sum(int(tf.size(variable)) for variable in named.values())
    say(
        f"{config.model.weights}: {len(started.loaded)} of {len(named)} variables loaded, {values:,} of {total:,} "
        f"values; all of them are in {folder / REPORT}"
    )
    if config.model.weights == IMAGENET:
        say(f"{config.model.label} expects pixels with {show_pixels(config.data)}: they are set")
    if started.left:
        table("at their initial values", ("variable", "why"), _first([*started.left.items()]))
    if started.unused:
        table("in the file and not used", ("name",), _first([(name,) for name in started.unused]))
    if writes:
        write_json(folder / REPORT, {"weights": config.model.weights, **digest(config), **vars(started)})


def _first(rows: list[Any]) -> list[Any]:
    """Return the first rows, and the number of the others."""
    rest = len(rows) - SHOWN
    return rows if rest <= 0 else [*rows[:SHOWN], (f"and {rest} more", *[""] * (len(rows[0]) - 1))]
