"""Figures of docs/optimizers.md about Keras's own optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.keras import Accumulate, Adafactor, accumulate

REPEATS = 16


def moved(optimizer: keras.optimizers.Optimizer, gradient: object, done: int = 0) -> float:
    """The way of a weight in the update after `done` others, from ones."""
    variable = keras.Variable(np.ones((4, 3), "float32"))
    optimizer.build([variable])
    optimizer.iterations.assign(done)
    optimizer.apply([gradient], [variable])
    return float(1.0 - variable.numpy()[0, 0])


@pytest.mark.parametrize(
    ("kind", "ratio"), [(keras.optimizers.Adam, 4.0), (keras.optimizers.RMSprop, 4.0), (keras.optimizers.SGD, 1.0)]
)
def test_keras_squares_repeated_tokens_one_by_one(kind, ratio):
    """A token that stands 16 times in a batch, each time with the same gradient."""
    rows = tf.IndexedSlices(tf.ones([REPEATS, 3]), tf.zeros([REPEATS], tf.int32), tf.constant([4, 3]))
    sparse, dense = (moved(kind(1e-3), gradient) for gradient in (rows, tf.convert_to_tensor(rows)))
    assert sparse / dense == pytest.approx(ratio, rel=1e-2)


def test_keras_adafactor_caps_a_given_rate():
    """After 9,999 updates at 1 / sqrt(10,000) = 0.01."""
    gradient = tf.ones([4, 3])
    given = {"relative_step": False}
    high, low = (moved(keras.optimizers.Adafactor(rate, **given), gradient, 9_999) for rate in (0.1, 0.01))
    assert high == pytest.approx(low, rel=1e-5)
    high, low = (moved(Adafactor(rate), gradient, 9_999) for rate in (0.1, 0.01))
    assert high == pytest.approx(10 * low, rel=1e-3)


@pytest.mark.parametrize(("by", "ratio"), [("plain", 4.0), ("accumulate", 1.0), ("Accumulate", 1.0)])
def test_accumulation_gives_the_sum_of_a_tokens_gradients(by, ratio):
    """16 times the same token in a batch of 4 examples, by Adam's first update, which moves by the rate."""
    optimizer = keras.optimizers.Adam(1e-3)
    embedding = keras.layers.Embedding(4, 3, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input((4,), dtype="int32"), embedding, keras.layers.Flatten()])
    model.compile(Accumulate(optimizer, steps=2) if by == "Accumulate" else optimizer, "mae")
    if by == "accumulate":
        accumulate(model, 2)
    tokens, far = np.zeros((4, 4), "int32"), np.full((4, 12), 9.0, "float32")
    model.fit(tokens, far, batch_size=2 if by == "Accumulate" else 4, verbose=0)
    np.testing.assert_allclose(embedding.embeddings.numpy()[0], ratio * 1e-3, rtol=1e-2)
