"""How far the gradient of a RevNet is from the exact one, with streams of floats and in fixed point (15 minutes).

    .venv/bin/python benchmarks/gradient_error.py

The reference is float64 with streams of floats (0 bits). The error is the norm of the difference over the norm of the
reference, over all variables, for 32 images of 16 x 16 and group norm, with initial weights, for each of SEEDS of
weights and images. It is some 1e-7, or, where a rounding has moved an activation across a ReLU's kink, 1e-4 to 1e-3:
`moved` is the share of errors above MOVED. `+-` is the standard error of the mean. `beside floats` is the mean over
that of plain float streams on the same weights and images, with its standard error.
"""

import os
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # before TensorFlow is imported

import numpy as np
import tensorflow as tf
from workbench import Table

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Gradients
from accumtrain.models.build import build_model
from accumtrain.models.config import RevNetConfig
from accumtrain.models.layers import ModelSpec

MODELS: dict[str, dict[str, Any]] = {
    "revnet38": {"units": [3, 3, 3], "filters": [32, 32, 64, 112]},
    "revnet110": {"units": [9, 9, 9], "filters": [32, 32, 64, 128]},
    "revnet56": {"units": [3, 3, 3], "filters": [32, 32, 64, 128], "bottleneck": True},
}
IMAGES, SHAPE, CLASSES = 32, (16, 16, 3), 10
SEEDS = range(100, 228)
BITS = (0, 21, 22, 23)
MOVED = 1e-5


def build(name: str, bits: int, precision: str, seed: int) -> Model:
    config = RevNetConfig(memory="store", norm="group", snap_bits=bits, **MODELS[name])
    return build_model(config, ModelSpec(SHAPE, CLASSES, precision, seed=seed))


def gradient_of(model: Model, labels: tf.Tensor) -> Callable[[tf.Tensor], list[np.ndarray]]:
    """A function from inputs to the gradient of the summed loss with respect to every variable, as float64."""
    found: dict[Any, tf.Tensor] = {}  # by the variable's ref

    def emit(gradients: Gradients) -> list[tf.Operation]:
        known = [(variable, value) for variable, value in gradients if value is not None]
        found.update({variable.ref(): tf.convert_to_tensor(value) for variable, value in known})
        return []

    def loss(logits: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    @tf.function(autograph=False)
    def run(inputs: tf.Tensor) -> list[tf.Tensor]:
        tape.gradient(model, inputs, loss, Mode(training=True), emit)
        return [found[variable.ref()] for variable in model.trainable_variables]

    return lambda inputs: [value.numpy().astype(np.float64) for value in run(inputs)]


def norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(array)) for array in arrays)))


def errors_of(name: str) -> dict[int, list[float]]:
    """The errors for each number of bits, one for each seed."""
    models = {bits: build(name, bits, "float32", seed=0) for bits in BITS}
    exact_model = build(name, 0, "float64", seed=0)
    labels = tf.range(IMAGES) % CLASSES
    gradients = {bits: gradient_of(model, labels) for bits, model in models.items()}
    exact_gradient = gradient_of(exact_model, labels)
    errors: dict[int, list[float]] = {bits: [] for bits in BITS}
    for seed in SEEDS:
        fresh = build(name, 0, "float32", seed)
        images = tf.random.stateless_normal((IMAGES, *SHAPE), (seed, 1))
        for model in (exact_model, *models.values()):
            for variable, value in zip(model.variables, fresh.variables, strict=True):
                variable.assign(tf.cast(value, variable.dtype))
        exact = exact_gradient(images)
        for bits in BITS:
            difference = [a - b for a, b in zip(gradients[bits](images), exact, strict=True)]
            errors[bits].append(norm(difference) / norm(exact))
    return errors


def main() -> None:
    table = Table("model", "snap_bits", "median", "mean", "+-", "moved", "beside floats")
    everything: dict[int, list[float]] = {bits: [] for bits in BITS}
    for name in MODELS:
        errors = errors_of(name)
        show(table, name, errors)
        for bits, found in errors.items():
            everything[bits] += found
    show(table, "all", everything)


def show(table: Table, name: str, errors: dict[int, list[float]]) -> None:
    floats = np.array(errors[0])
    for bits, found in ((bits, np.array(found)) for bits, found in errors.items()):
        ratio = found.mean() / floats.mean()
        deviation = standard_error(found - ratio * floats) / floats.mean()  # of a ratio of means, to first order
        sizes = (f"{value:.1e}" for value in (np.median(found), found.mean(), standard_error(found)))
        table.row(name, bits, *sizes, f"{np.mean(found > MOVED):.0%}", f"{ratio:.2f} +- {deviation:.2f}")


def standard_error(values: np.ndarray) -> float:
    """Of the mean of `values`."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    main()
