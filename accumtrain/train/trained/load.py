"""The model of a trained run in its best or its last state, and the data that it is measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from accumtrain.backprop.model import Model
from accumtrain.config.read import to_mapping
from accumtrain.config.roles import keys_with
from accumtrain.config.schema import Config
from accumtrain.data.inputs.trained_on import TrainedOn, read_trained_on
from accumtrain.data.source import Dataset
from accumtrain.errors import CheckpointError, ConfigError, DataError
from accumtrain.fields import Role, shorten
from accumtrain.models.build import build_model
from accumtrain.models.config import ANY
from accumtrain.runs.checkpoint_store import Saved, newest_manifest
from accumtrain.runs.config import BEST_STATE
from accumtrain.runs.names import CHECKPOINTS, LENGTH, differences, folder_of, learned_values
from accumtrain.runs.run import INPUTS_FILE, REMEDY
from accumtrain.runs.schema import Manifest
from accumtrain.tasks.answer import Answer, build_answer, find_answer
from accumtrain.tasks.config import TASKS
from accumtrain.tasks.objective import Objective, build_objective, open_objective, open_stored
from accumtrain.train.build import check_sizes, moving_average, spec_for
from accumtrain.train.checkpoint import again_if_changed, find_state, restore_model

CLASSES = "data.classes"


def find_trained_on(config: Config) -> tuple[TrainedOn, Mapping[str, Any]]:
    """Return the content of inputs.json, and the fingerprint of the data if that had to be opened.

    The data is opened if inputs.json is gone.

    Raises:
        AccumtrainError: the file of a run is damaged, or the data can't be opened.
    """
    noted = read_noted(config)
    if noted is not None:
        return noted.with_length(config.data), {}
    objective = open_objective(config)
    trained_on = TrainedOn.from_json(objective.trained_on.as_json(), config.data)
    return trained_on, objective.stored.fingerprint


def read_noted(config: Config) -> TrainedOn | None:
    """Return the content of inputs.json, as `read_trained_on` does. It fits the checkpoints of the run and its task.

    Raises:
        CheckpointError: it is damaged, or that of another run; or no checkpoint is whole.
    """
    noted = read_trained_on(folder_of(config), config.data)
    newest = newest_manifest(folder_of(config) / CHECKPOINTS)
    file, form = folder_of(config) / INPUTS_FILE, TASKS[config.task.kind].targets
    if noted is not None and noted.form != form:
        raise CheckpointError(
            f"{file} is damaged: targets.form={shorten(noted.form)}: must be {form}, as task={config.task.kind} has; "
            f"{REMEDY}"
        )
    if newest is None:
        again_if_changed(lambda: find_state(folder_of(config) / CHECKPOINTS))  # its error, before a model is built
    if noted is None or newest is None:
        return noted
    check_evaluates(config, {}, newest)
    check_sizes(config, newest)
    names, before = len(noted.class_names), newest["data"].get(CLASSES)
    classes = len(before) if isinstance(before, list) else before
    if classes not in (None, names):
        raise CheckpointError(
            f"{file} has the names of {names} classes, the checkpoints have {classes} classes: it is damaged; {REMEDY}"
        )
    kept = differences(newest.get("inputs", {}), noted.inputs.in_short)
    if changed := kept or differences(newest.get("contents", {}), noted.digests):
        raise CheckpointError(f"{file} is not that of the checkpoints: {changed}; {REMEDY}")
    try:
        find_answer(config).check_facts({**noted.facts, **newest.get("answers", {})}, noted.class_names)
    except ConfigError as error:
        raise CheckpointError(f"{file} is damaged: {error}; {REMEDY}") from error
    return noted


def open_measured(config: Config) -> tuple[Objective, bool]:
    """Return the run's own data, or new labelled data, of which all is measured: it is the test split then.

    Returns:
        The objective on the data, whose classes have the names of the run's, and whether the run was trained on it.

    Raises:
        AccumtrainError: there is no checkpoint, inputs.json is damaged, or the data can't be opened.
    """
    folder = folder_of(config) / CHECKPOINTS
    _, manifest = again_if_changed(lambda: find_state(folder))
    trained = manifest["data"]
    noted = read_noted(config)
    try:
        data = open_stored(config)
    except DataError:
        if noted is None:
            raise
        data = None  # a class may have too few examples to train on, and enough to be measured
    if data is not None and (noted is None or _fingerprint_as_trained(config, data, noted) == trained):
        noted = noted or build_objective(config, data).trained_on
        return build_objective(config, replace(data, class_names=noted.class_names), noted.facts), True
    assert noted is not None
    from accumtrain.data.sources.labelled import open_labelled  # here, as a training has no use for it

    data = open_labelled(config.data, noted.with_length(config.data), trained, config.run.seed, config.task.rows)
    return build_objective(config, data, noted.facts), False


def _fingerprint_as_trained(config: Config, data: Dataset, noted: TrainedOn) -> Mapping[str, Any]:
    """Return the fingerprint of the data with texts as long as those that the run was trained on."""
    if noted.with_length(config.data) == noted:
        return data.fingerprint
    return open_stored(replace(config, data=noted.inputs.adapt(config.data))).fingerprint


class Trained(NamedTuple):
    """A model with the weights of a checkpoint, the checkpoint, its manifest, and the answers of the model."""

    model: Model
    saved: Saved
    manifest: Manifest
    answer: Answer


def build_trained(config: Config, noted: TrainedOn, precision: str = "") -> Model:
    """Return the model of a trained run before its weights are read, in `precision` or in that of the run."""
    return build_model(config.model, spec_for(config, noted.inputs, len(noted.class_names), precision=precision))


def trained_model(config: Config, noted: TrainedOn, fingerprint: Mapping[str, Any], state: str = BEST_STATE) -> Trained:
    """Return the model with the weights of the run's best state, or of its last. Without any evaluation both are one.

    With ema.decay these are the averages. Call it inside the strategy's scope.

    Args:
        noted: the content of inputs.json, of `find_trained_on`.
        fingerprint: that of the data, of `find_trained_on`.
        state: `best` or `last`.

    Raises:
        CheckpointError: no checkpoint is whole, or it is that of another model.
    """
    model = build_trained(config, noted)
    ema = moving_average(config, model)
    accept = partial(check_evaluates, config, fingerprint)
    saved, manifest = restore_model(folder_of(config) / CHECKPOINTS, model, ema, accept, state=state)
    if ema is not None:
        for average, weight in zip(ema.averages, ema.weights, strict=True):
            weight.assign(average)
    return Trained(model, saved, manifest, build_answer(config, noted, manifest.get("answers", {})))


def check_evaluates(config: Config, fingerprint: Mapping[str, Any], manifest: Manifest) -> None:
    """Compare model, inputs and classes in the checkpoint's manifest with this configuration.

    Args:
        fingerprint: that of the data, as far as it is known.

    Raises:
        CheckpointError: this configuration would measure another model, or feed it other images.
    """
    now = learned_values(config) | dict(fingerprint)
    trained = {**manifest["learned"], **manifest["data"]}
    measured = {CLASSES, *keys_with(Role.MEASURED, to_mapping(config))}
    if config.model.lengths == ANY and getattr(config.data, "length", None) is not None:
        measured.discard(LENGTH)
    if changed := differences({key: value for key, value in trained.items() if key in measured}, now):
        raise CheckpointError(
            f"the run in {folder_of(config)} was trained with other values: {changed}; evaluate it with those it was "
            "trained with"
        )
