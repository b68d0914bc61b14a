"""Check of the optimizer: its updates in float32 against the same updates in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from accumtrain.engine.checks.result import Result, ratio
from accumtrain.optim.optimizer import Optimizer

UPDATES = 5
ARITHMETIC_BOUND = 1e-5  # of the distance travelled
HALF_ULP = 2.0**-24
JUMP = 1e-3  # of the largest change of a value
MOST_JUMPS = 1e-4  # of the values
NUDGES = 10  # each finds half of the jumps


def check_optimizer(
    build: Callable[[], Optimizer],
    names: Sequence[str],
    weights: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    decayed: Sequence[bool],
) -> Result:
    """Updates each variable alone, in both precisions, from the same weights and gradients, and gives the worst.

    Float32 has to round each new weight, which no arithmetic avoids: that much of |w| is allowed on top. A few values
    may stay out of it, where the rule jumps: where in float64, too, gradients changed in their last bits change the
    result much more, as the sign of a sum that is nearly 0 does.

    Args:
        build: a new optimizer of the run's configuration.
        gradients: the mean gradient of a window; each update takes it with noise of its size.
    """
    results = [
        _check_one(build, name, start.astype(np.float32), _noisy(gradient.astype(np.float32), place), decay)
        for place, (name, start, gradient, decay) in enumerate(zip(names, weights, gradients, decayed, strict=True))
    ]
    return max(results, key=lambda result: result[0])[1]


def _check_one(
    build: Callable[[], Optimizer], name: str, start: np.ndarray, gradients: Sequence[np.ndarray], decay: bool
) -> tuple[float, Result]:
    """The check of one variable, and how much of its bound it takes."""

    def updated(dtype: type, gradients: Sequence[np.ndarray]) -> np.ndarray:
        return _updated(build(), name, start.astype(dtype), gradients, decay)

    single, double = updated(np.float32, gradients), updated(np.float64, gradients)
    measured, bound = _compared(single, double, start)
    note = f"nearest to its bound: {name} {list(start.shape)}"
    if measured > bound:
        moved = np.max([np.abs(updated(np.float64, nudged) - double) for nudged in _nudged(gradients)], axis=0)
        steady = moved <= JUMP * np.max(np.abs(double - start))
        jumps = steady.size - int(np.sum(steady))
        if 0 < jumps <= MOST_JUMPS * steady.size:
            measured, bound = _compared(single[steady], double[steady], start[steady])
            note += f"; without {jumps} of its {steady.size:,} values, where the rule jumps in float64 too"
    title = f"{UPDATES} updates of the optimizer against float64, of the distance travelled"
    share = measured / bound if np.isfinite(measured) else np.inf
    return share, Result(title, measured, bound, note)


def _compared(single: np.ndarray, double: np.ndarray, start: np.ndarray) -> tuple[float, float]:
    """The difference of the precisions, and its bound, both of the distance travelled."""
    distance = float(np.linalg.norm(double - start))
    rounding = UPDATES * HALF_ULP * float(np.linalg.norm(double))
    bound = ARITHMETIC_BOUND + (rounding / distance if distance else 0.0)
    return ratio(float(np.linalg.norm(single - double)), distance), bound


def _noisy(gradient: np.ndarray, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    size = np.float32(np.sqrt(np.mean(np.square(gradient, dtype=np.float64))))
    return [gradient + size * generator.standard_normal(gradient.shape, np.float32) for _ in range(UPDATES)]


def _nudged(gradients: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The gradients, each value changed by up to 8 units of float32's last place, several times."""
    generator = np.random.default_rng(0)
    for _ in range(NUDGES):
        yield [gradient * (1 + generator.uniform(-(2.0**-20), 2.0**-20, gradient.shape)) for gradient in gradients]


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
