"""An export, loaded without accumtrain, computes what the model does: every format and family of models."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.config.schema import Config
from accumtrain.data.inputs.pixels import Pixels, make_images
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.export.compare import largest_difference
from accumtrain.export.config import FORMATS, QUANTIZED
from accumtrain.export.formats import Exported
from accumtrain.models.build import build_model
from accumtrain.models.config import KerasModelConfig, LeNetConfig, ResNetConfig, RevNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.registry import load
from accumtrain.tasks.classify import ClassAnswer

NAMES = ["ant", "a bee, or two", "čat"]
MODELS = {
    "lenet5": LeNetConfig(),
    "resnet": ResNetConfig(units=[1, 1], filters=[8, 8, 16]),
    "revnet": RevNetConfig(units=[1, 1], filters=[8, 8, 16]),
    "MobileNet": KerasModelConfig(name="MobileNet", args={"alpha": 0.25}),
}
FAST = {("keras", "MobileNet")}  # a process with TensorFlow for each takes its time
CASES = [
    pytest.param(
        entry.name,
        name,
        id=f"{entry.name}-{name}",
        marks=[
            *([] if (entry.name, name) in FAST else [pytest.mark.slow]),
            *[pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}") for package in entry.packages],
        ],
    )
    for entry in FORMATS
    for name, model in MODELS.items()
    if not entry.model_kinds or model.kind in entry.model_kinds
]


def exported(name: str, augment: str = "none") -> Exported:
    """Return a model with moving statistics of images. Its answers differ from image to image."""
    model = build_model(MODELS[name], ModelSpec((64, 65, 3), len(NAMES)))
    inputs = Pixels((64, 65, 3), augment, (64, 65), [0.4, 0.5, 0.6], [0.25], 255)
    what = Exported(name, model, inputs, ClassAnswer(Config(), TrainedOn(inputs, "classes", NAMES), {}))
    images = inputs.serve(tf.constant(make_images(inputs.shape, (1.0, 1.0))))
    mode = Mode(training=True, recording=True, seed=tf.zeros([2], tf.int32))
    model(images, mode)
    for norm, (mean, variance) in mode.statistics.items():
        norm.moving_mean.assign(mean)
        norm.moving_variance.assign(variance)
    last = [variable for variable in model.trainable_variables if variable.shape[-1] == len(NAMES)]
    bias, kernel = sorted(last, key=lambda variable: variable.shape.rank)
    bias.assign(tf.zeros_like(bias))
    logits = model(images).numpy()
    factor = 1 / np.ptp(logits, axis=0).max()
    kernel.assign(kernel * factor)
    bias.assign(-factor * logits.mean(axis=0))
    return what


def difference_of(kind: str, what: Exported, folder: Path) -> float:
    path = folder / f"file{FORMATS[kind].suffix}"
    load(FORMATS[kind].write)(what, path)
    return largest_difference(what, path)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_round_trip(kind, name, tmp_path):
    assert difference_of(kind, exported(name), tmp_path) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["float16", "int8"])
@pytest.mark.parametrize("name", ["lenet5", "resnet", "revnet"])
def test_weights_of_fewer_bits(name, quantize, tmp_path):
    assert difference_of("tflite", replace(exported(name), quantize=quantize), tmp_path) < QUANTIZED[quantize]


@pytest.mark.slow
def test_the_middle_of_images(tmp_path):
    assert difference_of("tflite", exported("resnet", "inception"), tmp_path) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_answers_differ_from_image_to_image(name):
    """Else the round trips would show nothing."""
    what = exported(name)
    answers = what.function()(tf.constant(make_images(what.inputs.shape, (1.7, 2.3))))["probabilities"].numpy()
    assert np.ptp(answers, axis=0).max() > 0.1
    assert answers.max() < 0.999
