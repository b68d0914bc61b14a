"""The model of a trained run in its best state, and what it was trained on, without its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from accumtrain.backprop.model import Model
from accumtrain.config.schema import Config
from accumtrain.data.labelled import open_labelled
from accumtrain.data.open_data import open_data
from accumtrain.data.source import Data
from accumtrain.engine.build_window import moving_average
from accumtrain.engine.checkpoint import restore_model
from accumtrain.engine.checkpoint_files import again_if_changed, find_whole
from accumtrain.errors import CheckpointError, DataError
from accumtrain.kinds.sources import FolderConfig, TableConfig
from accumtrain.models.build_model import build_model
from accumtrain.models.spec import ModelSpec
from accumtrain.runs.checkpoint_store import Saved, best_first
from accumtrain.runs.folder import CHECKPOINTS, folder_of
from accumtrain.runs.identity import differences, learned_values
from accumtrain.runs.trained_on import IMAGES, REMEDY, Images, read_images

MEASURED = ("model.", "loss.", "ema.", "precision", "data.augment", "data.mean", "data.std", "data.image_size")
CLASSES = "data.classes"


def images_of(data: Data) -> Images:
    """What is noted of the images of a data set."""
    return Images(tuple(data.image_shape), data.classes)


def trained_images(config: Config) -> tuple[Images, Mapping[str, Any]]:
    """What the run was trained on, and the fingerprint of its data if that had to be opened.

    It has to be where images.json is gone.

    Raises:
        AccumtrainError: the file of a run is damaged, or the data can't be opened.
    """
    images = read_images(folder_of(config))
    if images is not None:
        return images, {}
    data = open_data(config.data, config.run.seed)
    return images_of(data), data.fingerprint


def open_measured(config: Config) -> tuple[Data, bool]:
    """The run's own data, or new labelled data, of which all is measured: it is the test split then.

    Returns:
        The data, whose classes have the names of the run's, and whether it is what the run was trained on.

    Raises:
        AccumtrainError: there is no checkpoint, images.json is damaged, or the data can't be opened.
    """
    trained = _trained_data(config)
    images = read_images(folder_of(config))
    try:
        data = open_data(config.data, config.run.seed)
    except DataError:
        if images is None or not isinstance(config.data, FolderConfig | TableConfig):
            raise
        data = None  # a class may have too few images to train on, and enough to be measured
    if data is not None and (images is None or data.fingerprint == trained):
        images = images or images_of(data)
        _check_names(config, images, data)
        return replace(data, class_names=images.class_names), True
    assert images is not None
    return open_labelled(config.data, images, trained, config.run.seed), False


def _trained_data(config: Config) -> dict[str, Any]:
    """The fingerprint of the data that the run was trained on."""
    folder = folder_of(config) / CHECKPOINTS
    if not best_first(folder):
        raise CheckpointError(f"no checkpoint in {folder}: train first, with the same run.name")
    _, manifest = again_if_changed(lambda: find_whole(best_first(folder)))
    return dict(manifest["data"])


def _check_names(config: Config, images: Images, data: Data) -> None:
    if len(images.class_names) != data.num_classes:
        raise CheckpointError(
            f"{folder_of(config) / IMAGES} has the names of {len(images.class_names)} classes, the data has "
            f"{data.num_classes} classes: it is damaged; {REMEDY}"
        )


def trained_model(config: Config, images: Images, fingerprint: Mapping[str, Any]) -> tuple[Model, Saved]:
    """The model with the weights of the best state, or of the last one if there was no evaluation yet.

    With ema.decay these are the averages. Call it inside the strategy's scope.

    Args:
        images: the first of the two that `trained_images` returned.
        fingerprint: the second of them.

    Raises:
        CheckpointError: no checkpoint is whole, or it is that of another model.
    """
    spec = ModelSpec(images.shape, len(images.class_names), config.precision, config.run.seed, draws=False)
    model = build_model(config.model, spec)
    ema = moving_average(config, model)
    accept = partial(check_evaluates, config, fingerprint)
    saved, _ = restore_model(folder_of(config) / CHECKPOINTS, model, ema, accept)
    if ema is not None:
        for average, weight in zip(ema.averages, ema.weights, strict=True):
            weight.assign(average)
    return model, saved


def check_evaluates(config: Config, fingerprint: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Compares what the checkpoint's manifest says of model, images and classes with this configuration.

    Args:
        fingerprint: that of the data, as far as it is known.

    Raises:
        CheckpointError: this configuration would measure another model, or feed it other images.
    """
    now = learned_values(config) | dict(fingerprint)
    trained = {**manifest["learned"], **manifest["data"]}
    measured = {key: value for key, value in trained.items() if key == CLASSES or key.startswith(MEASURED)}
    if changed := differences(measured, now):
        raise CheckpointError(
            f"the run in {folder_of(config)} was trained with other values: {changed}; evaluate it with those it was "
            "trained with"
        )
