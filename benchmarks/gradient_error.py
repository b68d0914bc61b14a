"""How far the gradient of a RevNet is from the exact one, for each width of the snap grid (about two minutes on CPU).

    .venv/bin/python benchmarks/gradient_error.py

The reference is float64 without a grid. The error is the norm of the difference over the norm of the reference, over
all variables, for 32 images of 16 x 16 and group norm, with initial weights.
"""

import os
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # before TensorFlow is imported

import numpy as np
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients
from accumtrain.kinds.models import RevNetConfig
from accumtrain.models.build_model import build_model
from accumtrain.models.spec import ModelSpec

MODELS = {"revnet38": ([3, 3, 3], [32, 32, 64, 112]), "revnet110": ([9, 9, 9], [32, 32, 64, 128])}
IMAGES, SHAPE, CLASSES = 32, (16, 16, 3), 10


def gradient(name: str, bits: int, precision: str) -> list[np.ndarray]:
    """Gradient of the summed loss with respect to every variable, as float64."""
    units, filters = MODELS[name]
    config = RevNetConfig(memory="store", norm="group", units=units, filters=filters, snap_bits=bits)
    model = build_model(config, ModelSpec(SHAPE, CLASSES, precision, seed=3))
    images = tf.random.stateless_normal((IMAGES, *SHAPE), (0, 1))
    labels = tf.range(IMAGES) % CLASSES
    found: dict[Any, tf.Tensor] = {}  # by the variable's ref

    def emit(gradients: Gradients) -> list[tf.Operation]:
        found.update({variable.ref(): value for variable, value in gradients})
        return []

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        def loss(logits: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

        tape.gradient(model, images, loss, Mode(training=True), emit)
        return [found[variable.ref()] for variable in model.trainable_variables]

    return [value.numpy().astype(np.float64) for value in run()]


def norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(array)) for array in arrays)))


def main() -> None:
    print(f"{'model':<10} {'snap_bits':>9} {'float32':>9} {'bfloat16':>9}")
    for name in MODELS:
        exact = gradient(name, 0, "float64")
        for bits in (0, 12, 14, 16, 18):
            errors = [
                norm([a - b for a, b in zip(gradient(name, bits, precision), exact, strict=True)]) / norm(exact)
                for precision in ("float32", "bfloat16")
            ]
            print(f"{name:<10} {bits:>9} " + " ".join(f"{error:>9.1e}" for error in errors), flush=True)


if __name__ == "__main__":
    main()
