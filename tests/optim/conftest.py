"""One trajectory of every kind of optimizer on the same weights and gradients, in any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.optim.config import (
    AdafactorConfig,
    AdamConfig,
    AdamWConfig,
    KerasOptimConfig,
    OptimConfig,
    SgdConfig,
)
from accumtrain.optim.optimizer import Optimizer

SHAPES = [(), (5,), (4, 6), (3, 4, 5), (3, 3, 2, 5), (7, 1)]
UPDATES = 50


@pytest.fixture
def configs() -> dict[str, OptimConfig]:
    return {
        "adam": AdamConfig(lr=1e-2, weight_decay=0.1, epsilon=1e-8),
        "adamw": AdamWConfig(lr=1e-2, weight_decay=0.1, epsilon=1e-8),
        "sgd": SgdConfig(lr=1e-2, weight_decay=0.1, momentum=0.9, nesterov=True),
        "adafactor": AdafactorConfig(lr=None, weight_decay=0.1, momentum=0.9),
        "keras": KerasOptimConfig(lr=1e-2, weight_decay=0.1, name="Nadam"),
    }


@pytest.fixture
def weights() -> list[np.ndarray]:
    """Draw weights of ranks 0 to 4, all float32 numbers, so that float32 and float64 start from the same."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in SHAPES]


@pytest.fixture
def gradients() -> list[list[np.ndarray]]:
    """For each update, with what breaks second moments: all zero at updates 1 and 11, a row and a column always."""
    rng = np.random.default_rng(1)
    series = []
    for update in range(UPDATES):
        scale = 0.0 if update % 10 == 0 and update < 20 else 10.0 ** rng.uniform(-3, 1)
        series.append([(scale * rng.normal(size=shape)).astype(np.float32).astype(np.float64) for shape in SHAPES])
        for gradient in series[-1]:
            if gradient.ndim >= 2:
                gradient[..., 1, :] = 0.0
                gradient[..., -1] *= gradient.shape[-1] == 1
    return series


Train = Callable[..., list[np.ndarray]]


@pytest.fixture
def train() -> Train:
    """Return a function that makes an update for each gradient and returns the weights after the last."""

    def run(
        optimizer: Optimizer,
        weights: Sequence[np.ndarray],
        gradients: Sequence[Sequence[np.ndarray]],
        dtype: tf.DType = tf.float32,
        schedule: Callable[[tf.Tensor], tf.Tensor] = lambda step: 1.0 / tf.cast(1 + step // 20, tf.float32),
        first_step: int = 0,
        jit_compile: bool | None = None,
    ) -> list[np.ndarray]:
        variables = [tf.Variable(weight, dtype=dtype, name=f"part{i}/w") for i, weight in enumerate(weights)]
        optimizer.build(variables, [weight.ndim >= 2 for weight in weights])

        @tf.function(autograph=False, jit_compile=jit_compile)
        def update(step: tf.Tensor, *gradients: tf.Tensor) -> None:
            optimizer.apply(gradients, optimizer.learning_rate(step) * schedule(step), step)

        for step, values in enumerate(gradients, first_step):
            update(tf.constant(step, tf.int64), *[tf.constant(value, dtype) for value in values])
        return [variable.numpy() for variable in variables]

    return run


def assert_same_path(
    actual: list[np.ndarray], expected: list[np.ndarray], start: list[np.ndarray], rtol: float
) -> None:
    """Per variable: the error is within `rtol` of the way travelled, beside the roundings of the weight itself."""
    for got, want, origin in zip(actual, expected, start, strict=True):
        assert got.shape == want.shape
        way = np.linalg.norm(want - origin)
        roundings = UPDATES * np.finfo(got.dtype).eps / 2 * np.linalg.norm(want)
        assert np.linalg.norm(got - want) <= rtol * way + roundings, got.shape


@pytest.fixture(name="assert_same_path")
def _assert_same_path() -> Callable[..., None]:
    return assert_same_path


@pytest.fixture
def rates() -> list[float]:
    """The rates that `train` gives at a base rate of 1e-2, as float32 rounds them."""
    return [float(np.float32(1e-2) * (np.float32(1) / np.float32(1 + step // 20))) for step in range(UPDATES)]
