"""model.weights: the trained weights that a run begins with, read once, at update 0."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.convert import from_mapping
from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.data.source import Data
from accumtrain.engine.build_window import build_window, model_for
from accumtrain.engine.checkpoint_files import again_if_changed, find_whole
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.jobs.trained import trained_images, trained_model
from accumtrain.models.path_patterns import NOT
from accumtrain.models.start import Started, start_from
from accumtrain.runs.checkpoint_store import best_first
from accumtrain.runs.contents import read_config
from accumtrain.runs.files import write_json
from accumtrain.runs.folder import CHECKPOINTS, folder_of

KEY = "model.weights"
REPORT = "weights.json"  # in the run's folder
SHOWN = 12  # rows of the report on the screen
CHUNK = 2**20  # bytes
LEAST_LOADED = 0.5  # share of the variables; a new head, or another stem, is less than the other half


def place_of_weights(config: Config) -> Path | None:
    """The folder of a run, or the file, that model.weights names; None without it.

    Raises:
        ConfigError: there is none, or it is the run itself.
    """
    text = config.model.weights
    if text is None:
        return None
    given, named = Path(text), Path(config.run.dir) / text
    found = next((each for each in (given, named) if each.is_file() or (each / "config.yaml").is_file()), None)
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
    """What the manifest of a checkpoint says of the weights that the run began with: their content, not their path."""
    place = place_of_weights(config)
    if place is None:
        return {KEY: None}
    if place.is_file():
        checksum = 0
        with place.open("rb") as content:
            while chunk := content.read(CHUNK):
                checksum = google_crc32c.extend(checksum, chunk)
        return {KEY: f"crc32c {checksum:08x}"}
    folder = _checkpoints(config, place)
    _, manifest = again_if_changed(lambda: find_whole(best_first(folder)))
    sums = [each["crc32c"] for _, each in sorted(manifest["files"].items())]
    return {KEY: f"crc32c {' '.join(sums)}"}


def _checkpoints(config: Config, place: Path) -> Path:
    """The folder of the checkpoints of the run at `place`.

    Raises:
        ConfigError: it holds none.
    """
    folder = place / CHECKPOINTS
    if not best_first(folder):
        raise ConfigError(f"{KEY}={config.model.weights}: no checkpoint in {folder}; train that run first")
    return folder


def read_weights(config: Config) -> Mapping[str, Any] | None:
    """The arrays of the run that model.weights names, by path; None if it names a file, or nothing.

    It builds that run's model and frees it again. Before the window is built, a memory limit need not hold both.

    Raises:
        AccumtrainError: there is no such run, or its checkpoints can't be read.
    """
    place = place_of_weights(config)
    if place is None or place.is_file():
        return None
    _checkpoints(config, place)
    values = read_config(place / "config.yaml")
    values["run"] = {**values["run"], "dir": str(place.parent), "name": place.resolve().name}
    source = from_mapping(values)
    with tf.device("CPU"):
        images, fingerprint = trained_images(source)
        model, _ = trained_model(source, images, fingerprint)
        arrays = {path: np.array(variable) for path, variable in model.named.items()}  # copies
        del model
        gc.collect()  # frees its memory, as a model's objects refer to each other
    return arrays


def begin_with_weights(config: Config, model: Model, arrays: Mapping[str, Any] | None = None) -> Started | None:
    """Loads model.weights into a model, before anything is built on its weights.

    Args:
        arrays: what `read_weights` has returned, if it was called.

    Raises:
        ConfigError: there are no such weights, or hardly any of them fits the model.
        CheckpointError: they can't be read.
    """
    place = place_of_weights(config)
    if place is None:
        return None
    if arrays is None:
        arrays = _read_file(place, model) if place.is_file() else read_weights(config)
    assert arrays is not None, "it is a run"
    started = start_from(model, arrays)
    _check_fits(config, model, started)
    return started


def _check_fits(config: Config, model: Model, started: Started) -> None:
    """Raises ConfigError if the weights are those of another model, or if frozen variables have got none."""
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
        back = [f"{NOT}{layer}/*" for layer in dict.fromkeys(path.rpartition("/")[0] for path in random)]
        raise ConfigError(
            f"{KEY}={config.model.weights} does not have {len(random)} of the variables that model.freeze keeps as "
            f"they are (such as {random[0]}: {started.left[random[0]]}), which would stay random; train them: "
            f"model.freeze=[{','.join([*config.model.freeze, *back])}]"
        )


def window_with_weights(
    config: Config, data: Data, total_steps: int, strategy: tf.distribute.Strategy
) -> tuple[Window, Started | None]:
    """Builds all state of a run, at update 0, with model.weights loaded. Raises what `begin_with_weights` raises.

    Slots and averages are built on the loaded weights: some optimizers begin with a copy of them.
    """
    arrays = read_weights(config)
    with strategy.scope():
        model = model_for(config, data)
        started = begin_with_weights(config, model, arrays)
    del arrays  # which take as much memory as the model
    return build_window(config, data, total_steps, strategy, model=model), started


def _read_file(place: Path, model: Model) -> Mapping[str, Any]:
    # Keras takes a second to import, and no other run needs it
    from accumtrain.models.keras_model import KerasModel
    from accumtrain.models.keras_weights import read_keras_file

    assert isinstance(model, KerasModel), "place_of_weights refuses others"
    return read_keras_file(place, model.whole())


def show_start(config: Config, started: Started, window: Window, folder: Path, *, writes: bool) -> None:
    """Prints what was loaded, and writes all of it to REPORT."""
    named = window.model.named
    values = sum(int(tf.size(named[path])) for path in started.loaded)
    total = sum(int(tf.size(variable)) for variable in named.values())
    say(
        f"{config.model.weights}: {len(started.loaded)} of {len(named)} variables loaded, {values:,} of {total:,} "
        f"values; all of them are in {folder / REPORT}"
    )
    if started.left:
        table("at their initial values", ("variable", "why"), _first([*started.left.items()]))
    if started.unused:
        table("in the file and not used", ("name",), _first([(name,) for name in started.unused]))
    if writes:
        write_json(folder / REPORT, {"weights": config.model.weights, **digest(config), **vars(started)})


def _first(rows: list[Any]) -> list[Any]:
    """The first rows, and how many more there are."""
    rest = len(rows) - SHOWN
    return rows if rest <= 0 else [*rows[:SHOWN], (f"and {rest} more", *[""] * (len(rows[0]) - 1))]
