"""Adafactor's presets, through both doors, against the peers whose names they have (adafactor_peers.py)."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import accumtrain.keras
from accumtrain.keras.adafactor import read_preset
from accumtrain.optim.adafactor import Adafactor
from tests.optim.adafactor_peers import CASES, FILE, PEERS, SHAPES, UPDATES, gradients, weights

Options = Mapping[str, Any]


def by_our_optimizer(preset: str, options: Options) -> list[np.ndarray]:
    optimizer = Adafactor(**{**read_preset(preset), **options})
    variables = [tf.Variable(weight) for weight in weights()]
    optimizer.build(variables, [True] * len(variables))
    for update in range(UPDATES):
        step = tf.constant(update, tf.int64)
        optimizer.apply(list(map(tf.constant, gradients(update))), optimizer.learning_rate(step), step)
    return [variable.numpy() for variable in variables]


def by_keras(preset: str, options: Options) -> list[np.ndarray]:
    optimizer = accumtrain.keras.Adafactor.from_preset(preset, **options)
    variables = [keras.Variable(weight, dtype="float64") for weight in weights()]
    for update in range(UPDATES):
        optimizer.apply(list(map(tf.constant, gradients(update))), variables)
    return [variable.numpy() for variable in variables]


DOORS = pytest.mark.parametrize("door", [by_our_optimizer, by_keras])


def assert_near(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """The way travelled, of each weight as a whole, is right to 1e-6."""
    for got, want, start in zip(actual, expected, weights(), strict=True):
        assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want - start), got.shape


@DOORS
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_its_peer(door: Callable[[str, Options], list[np.ndarray]], name: str) -> None:
    case = CASES[name]
    with np.load(FILE) as stored:
        assert [each.split()[0] for each in stored["versions"]] == list(PEERS)
        flat = stored[name]
    pieces = np.split(flat, np.cumsum([np.prod(shape) for shape in SHAPES])[:-1])
    expected = [piece.reshape(shape) for piece, shape in zip(pieces, SHAPES, strict=True)]
    assert_near(door(case.preset, case.ours), expected)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def bojone(
    w: np.ndarray,
    series: list[np.ndarray],
    learning_rate: float | None = 1e-3,
    momentum: float = 0.0,
    min_dim_size_to_factor: int = 128,
    scale_parameter: bool = True,
) -> np.ndarray:
    """bojone's, for Keras 2, at commit 3305e11: factors of the two largest axes, momentum of the unscaled update."""
    m, v, rows, columns = np.zeros_like(w), np.zeros_like(w), 0.0, 0.0
    order = np.argsort(w.shape, kind="stable")
    for t, g in enumerate(series, 1):
        beta2 = 1 - t**-0.8
        square = g**2 + 1e-30
        if w.ndim >= 2 and w.shape[order[-2]] >= min_dim_size_to_factor:
            rows = beta2 * rows + (1 - beta2) * square.mean(order[-1], keepdims=True)
            columns = beta2 * columns + (1 - beta2) * square.mean(order[-2], keepdims=True)
            v = rows * columns / rows.mean(order[-2], keepdims=True)
        else:
            v = beta2 * v + (1 - beta2) * square
        u = g / np.sqrt(v)
        u = u / max(1.0, rms(u))
        m = momentum * m + (1 - momentum) * u
        rate = learning_rate
        if rate is None:
            rate = min(1e-2, t**-0.5) * (1.0 if scale_parameter else 0.05)
        w = w - rate * (max(rms(w), 1e-3) if scale_parameter else 1.0) * m
    return w


@DOORS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_dim_size_to_factor": 4, "momentum": 0.9, "learning_rate": None},
        {"min_dim_size_to_factor": 5, "momentum": 0.9, "learning_rate": None, "scale_parameter": False},
    ],
)
def test_agrees_with_bojone(door: Callable[[str, Options], list[np.ndarray]], options: Options) -> None:
    series = list(zip(*map(gradients, range(UPDATES)), strict=True))
    expected = [bojone(weight, list(own), **options) for weight, own in zip(weights(), series, strict=True)]
    assert_near(door("bojone", options), expected)
