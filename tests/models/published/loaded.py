"""Models of small folders, with their weights, and micro-batches for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.published.build import PublishedModel
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.folder import Folder
from accumtrain.models.published.stored import StoredTensors
from accumtrain.models.published.tensors import StoredArrays
from accumtrain.optim.config import SgdConfig
from accumtrain.train.build import build_optimizer
from accumtrain.train.weights import Started, start_from
from tests.models.published.folders import IMAGES, Sizes, draw_inputs

CLASSES = 3


def load_model(folder: Path, precision: str = "float64", **keys: Any) -> tuple[PublishedModel, Started]:
    """Return the model of a folder with three classes, and what was loaded. It drops nothing out by default."""
    config = PretrainedConfig(path=str(folder), **{"dropout": 0.0} | keys)
    config.check()
    family = Folder(folder).config["model_type"]
    shape = (Sizes.image, Sizes.image, 3) if family in IMAGES else (11,)
    kind = "pixels" if family in IMAGES else "tokens"
    model = build_model(config, ModelSpec(shape, CLASSES, precision, seed=1, inputs=(kind,)))
    assert isinstance(model, PublishedModel)
    return model, start_from(model, StoredArrays(StoredTensors(Folder(folder)), model.tensors, config.found.prefix))


def draw_batch(family: str) -> dict[str, Any]:
    """Return four examples, some with padding."""
    drawn, types = draw_inputs(family)
    inputs: Any = drawn
    if family not in IMAGES:
        inputs = np.int32(drawn) if types is None else {"tokens": np.int32(drawn), "types": np.int32(types)}
    inputs = tf.nest.map_structure(tf.constant, inputs)
    return {"inputs": inputs, "targets": tf.constant([0, 2, 1, 2]), "weight": tf.ones([4])}


def gradients_of(
    model: PublishedModel, batch: dict[str, Any], micro_steps: int = 1, *, xla: bool = False
) -> dict[str, np.ndarray]:
    """Return the gradient of the sum of the losses by the path of the variable, of those that are not frozen."""
    window = Window(model, build_optimizer(SgdConfig()), micro_steps=micro_steps, seed=5)
    batches = tf.data.Dataset.from_tensor_slices(batch).batch(len(batch["targets"]) // micro_steps, drop_remainder=True)
    Step(window, xla=xla).accumulate(iter(batches), micro_steps)
    return {path: buffer.numpy() for path, buffer in zip(model.trainable_paths, window.gradients, strict=True)}
