"""Check of the optimizer: its updates in float32 against the same updates in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from accumtrain.engine.verify.result import Result, ratio
from accumtrain.optim.optimizer import Optimizer

UPDATES = 5
ARITHMETIC_BOUND = 1e-5  # of the distance travelled
HALF_ULP = 2.0**-24


def check_optimizer(
    build: Callable[[], Optimizer],
    names: Sequence[str],
    weights: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    decayed: Sequence[bool],
) -> Result:
    """Updates each variable alone, in both precisions, from the same weights and gradients, and gives the worst.

    Float32 has to round each new weight, which no arithmetic avoids: that much of |w| is allowed on top.

    Args:
        build: a new optimizer of the run's configuration.
        gradients: the mean gradient of a window; each update takes it with noise of its size.
    """
    worst, where = Result("", 0.0, 1.0), 0.0
    for place, name in enumerate(names):
        start = weights[place].astype(np.float32)
        noisy = _noisy(gradients[place].astype(np.float32), place)
        single, double = (
            _updated(build(), name, start.astype(dtype), noisy, decayed[place]) for dtype in (np.float32, np.float64)
        )
        distance = float(np.linalg.norm(double - start))
        rounding = UPDATES * HALF_ULP * float(np.linalg.norm(double))
        bound = ARITHMETIC_BOUND + (rounding / distance if distance else 0.0)
        measured = ratio(float(np.linalg.norm(single - double)), distance)
        if not worst.name or not measured / bound <= where:
            title = f"{UPDATES} updates of the optimizer against float64, of the distance travelled"
            worst, where = (
                Result(title, measured, bound, f"nearest to its bound: {name} {list(start.shape)}"),
                measured / bound,
            )
    return worst


def _noisy(gradient: np.ndarray, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    size = np.float32(np.sqrt(np.mean(np.square(gradient, dtype=np.float64))))
    return [gradient + size * generator.standard_normal(gradient.shape, np.float32) for _ in range(UPDATES)]


def _updated(
    optimizer: Optimizer, name: str, start: np.ndarray, gradients: Sequence[np.ndarray], decayed: bool
) -> np.ndarray:
    """The weight after one update per gradient, in float64."""
    variable = tf.Variable(start, name=name)
    optimizer.build([variable], [decayed])
    for done, gradient in enumerate(gradients):
        step = tf.constant(done, tf.int64)
        optimizer.apply([tf.constant(gradient, variable.dtype)], optimizer.learning_rate(step), step)
    return variable.numpy().astype(np.float64)
