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
from accumtrain.data.config import FolderConfig, NpzConfig, TableConfig, TextsConfig
from accumtrain.data.inputs.trained_on import TrainedOn, read_trained_on
from accumtrain.errors import CheckpointError, DataError
from accumtrain.fields import Role
from accumtrain.models.build import build_model
from accumtrain.runs.checkpoint_store import Saved
from accumtrain.runs.config import BEST_STATE
from accumtrain.runs.names import ANSWER_FACTS, CHECKPOINTS, differences, folder_of, learned_values
from accumtrain.runs.run import INPUTS_FILE, REMEDY
from accumtrain.tasks.answer import Answer, build_answer
from accumtrain.tasks.objective import Objective, build_objective, open_objective, open_stored
from accumtrain.train.build import moving_average, spec_for
from accumtrain.train.checkpoint import again_if_changed, find_state, restore_model

CLASSES = "data.classes"


def find_trained_on(config: Config) -> tuple[TrainedOn, Mapping[str, Any]]:
    """Return what the run was trained on, and the fingerprint of its data if that had to be opened.

    It has to be where inputs.json is gone.

    Raises:
        AccumtrainError: the file of a run is damaged, or the data can't be opened.
    """
    noted = read_trained_on(folder_of(config), config.data)
    if noted is not None:
        return noted, {}
    objective = open_objective(config)
    trained_on = TrainedOn.from_json(objective.trained_on.as_json(), config.data)
    return trained_on, objective.stored.fingerprint


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
    noted = read_trained_on(folder_of(config), config.data)
    try:
        data = open_stored(config)
    except DataError:
        if noted is None or not isinstance(config.data, FolderConfig | NpzConfig | TableConfig | TextsConfig):
            raise
        data = None  # a class may have too few images to train on, and enough to be measured
    if data is not None and (noted is None or data.fingerprint == trained):
        noted = noted or build_objective(config, data).trained_on
        if len(noted.class_names) != data.num_classes:
            raise CheckpointError(
                f"{folder_of(config) / INPUTS_FILE} has the names of {len(noted.class_names)} classes, the data has "
                f"{data.num_classes} classes: it is damaged; {REMEDY}"
            )
        return build_objective(config, replace(data, class_names=noted.class_names), noted.facts), True
    assert noted is not None
    from accumtrain.data.sources.labelled import open_labelled  # here, as a training has no use for it

    data = open_labelled(config.data, noted, trained, config.run.seed)
    return build_objective(config, data, noted.facts), False


class Trained(NamedTuple):
    """A model with the weights of a checkpoint, the checkpoint, its manifest, and what the model answers."""

    model: Model
    saved: Saved
    manifest: Mapping[str, Any]
    answer: Answer


def build_trained(config: Config, noted: TrainedOn, precision: str = "") -> Model:
    """Return the model of a trained run before its weights are read, in `precision` or in that of the run."""
    return build_model(config.model, spec_for(config, noted.inputs, len(noted.class_names), precision=precision))


def trained_model(config: Config, noted: TrainedOn, fingerprint: Mapping[str, Any], state: str = BEST_STATE) -> Trained:
    """Return the model with the weights of the run's best state, or of its last. Without any evaluation both are one.

    With ema.decay these are the averages. Call it inside the strategy's scope.

    Args:
        noted: the first of the two that `find_trained_on` returned.
        fingerprint: the second of them.
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
    return Trained(model, saved, manifest, build_answer(config, noted, manifest.get(ANSWER_FACTS, {})))


def check_evaluates(config: Config, fingerprint: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Compare what the checkpoint's manifest says of model, images and classes with this configuration.

    Args:
        fingerprint: that of the data, as far as it is known.

    Raises:
        CheckpointError: this configuration would measure another model, or feed it other images.
    """
    now = learned_values(config) | dict(fingerprint)
    trained = {**manifest["learned"], **manifest["data"]}
    measured = {CLASSES, *keys_with(Role.MEASURED, to_mapping(config))}
    if changed := differences({key: value for key, value in trained.items() if key in measured}, now):
        raise CheckpointError(
            f"the run in {folder_of(config)} was trained with other values: {changed}; evaluate it with those it was "
            "trained with"
        )
