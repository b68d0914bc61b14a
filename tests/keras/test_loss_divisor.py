"""`Accumulate` warns where a number that depends on the examples divides the loss."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest

from accumtrain.keras import Accumulate, accumulate

DRAW = np.random.default_rng(0)
WORDS = DRAW.integers(1, 9, (16, 5)) * (np.arange(5) < DRAW.integers(1, 6, (16, 1)))
X, Y = DRAW.normal(size=(16, 5, 6)).astype(np.float32), DRAW.integers(0, 3, (16, 5))
WEIGHTS = DRAW.uniform(0.1, 2.0, (16, 5)).astype(np.float32)
LOSS = keras.losses.SparseCategoricalCrossentropy


def words() -> keras.Model:
    embedding = keras.layers.Embedding(9, 4, mask_zero=True)
    return keras.Sequential([keras.Input((5,), dtype="int32"), embedding, keras.layers.Dense(3)])


def attention() -> keras.Model:
    """Softmax, layer normalisation and a mean over time divide, but not the loss."""
    inputs = keras.Input((5, 6))
    hidden = keras.layers.LayerNormalization()(keras.layers.MultiHeadAttention(2, 4)(inputs, inputs))
    return keras.Model(inputs, keras.layers.Dense(3, kernel_regularizer="l2")(hidden))


CASES: dict[str, tuple[Any, Any, Any, Any, bool]] = {
    "a mask": (words, WORDS, LOSS(from_logits=True), None, True),
    "ignore_class": (attention, X, LOSS(from_logits=True, ignore_class=0), None, True),
    "weights that divide": (attention, X, LOSS(from_logits=True, reduction="mean_with_sample_weight"), WEIGHTS, True),
    "weights": (attention, X, LOSS(from_logits=True), WEIGHTS, False),
    "no weights": (attention, X, LOSS(from_logits=True), None, False),
    "a sum over a mask": (words, WORDS, LOSS(from_logits=True, reduction="sum"), None, False),
}


FAST = ("a mask", "weights")


def fit(model: keras.Model, x: np.ndarray, weights: np.ndarray | None, batch: int = 4) -> Any:
    return model.fit(x, Y, sample_weight=weights, batch_size=batch, shuffle=False, verbose=0)


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_the_warning(name):
    build, x, loss, weights, warned = CASES[name]
    keras.utils.set_random_seed(1)
    model = build()
    model.compile(Accumulate("sgd", 4), loss, jit_compile=False)
    if not warned:
        fit(model, x, weights)
        return
    with pytest.warns(UserWarning, match="counts each micro-batch alike.*use accumtrain.keras.accumulate"):
        fit(model, x, weights)


def test_the_remedy_of_the_warning():
    losses = []
    for steps in (0, 4):
        keras.utils.set_random_seed(1)
        model = words()
        model.compile("sgd", LOSS(from_logits=True), jit_compile=False)
        if steps:
            accumulate(model, steps)
        losses.append(fit(model, WORDS, None, batch=16).history["loss"][0])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_the_update_of_a_sum_needs_no_warning():
    model = words()
    model.compile(Accumulate("sgd", 4, "sum"), LOSS(from_logits=True), jit_compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, WORDS, None)
