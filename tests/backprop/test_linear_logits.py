"""The loss of a large linear layer by chunks of its rows."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import linear_logits
from accumtrain.backprop.linear_logits import LinearLogits
from accumtrain.backprop.mode import Mode
from accumtrain.engine.losses import (
    PerPosition,
    WholeBatch,
    accuracy,
    cross_entropy,
    loss_and_sums,
    top5,
    weighted_sums,
)
from accumtrain.models.layers import Dense, Initializer

ROWS, CLASSES, CHANNELS = 37, 1100, 6


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Chunks of 10 rows."""
    monkeypatch.setattr(linear_logits, "LEAST_BYTES", 10 * CLASSES * 8)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def smooth(labels, logits):
    """A loss with label smoothing and a factor for each class."""
    target = 0.9 * tf.one_hot(labels, CLASSES, dtype=logits.dtype) + 0.1 / CLASSES
    factor = 1.0 + tf.cast(labels % 3, logits.dtype)
    return factor * tf.nn.softmax_cross_entropy_with_logits(target, logits)


def both(loss, dtype=tf.float64, compute=None, table=False, bias=True, positions=None, jit=False):
    """Return loss, sums and gradients of hidden, kernel and bias, by chunks and of all logits at once."""
    hidden = tf.constant(draw(ROWS, CHANNELS), dtype)
    kernel = tf.constant(draw(*((CLASSES, CHANNELS) if table else (CHANNELS, CLASSES)), seed=1), dtype)
    vector = tf.constant(draw(CLASSES, seed=2), dtype)
    labels = tf.constant(np.random.default_rng(3).integers(0, CLASSES, ROWS), tf.int32)
    weight = tf.constant(np.random.default_rng(4).random(ROWS), tf.float32)
    functions = [loss, accuracy, top5]
    if positions:
        wide = ROWS // positions
        hidden = tf.reshape(hidden[: wide * positions], [wide, positions, CHANNELS])
        labels = tf.where(draw(wide, positions) > 1.5, -1, tf.reshape(labels[: wide * positions], [wide, positions]))
        weight, functions = weight[:wide], [PerPosition(each) for each in functions]
    batch = {"inputs": hidden, "targets": labels, "weight": weight}

    def compute_all(project):
        with tf.GradientTape() as tape:
            trained = [hidden, kernel, vector]
            tape.watch(trained)
            whole = LinearLogits(hidden, kernel, vector if bias else None, compute or dtype, of_table=table)
            total, sums = loss_and_sums(functions, whole if project else whole.logits, batch, 4.0)
        gradients = tape.gradient(total, trained if bias else trained[:2])
        return [total, *sums, *gradients]

    return tf.function(lambda: (compute_all(True), compute_all(False)), autograph=False, jit_compile=jit)()


def distances(found):
    chunked, plain = ([np.asarray(each, np.float64) for each in values] for values in found)
    return [np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in zip(chunked, plain, strict=True)]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("positions", [None, 7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("loss", [cross_entropy, smooth])
def test_chunks_give_values_and_gradients_of_the_whole(loss, table, bias, positions, jit):
    assert max(distances(both(loss, table=table, bias=bias, positions=positions, jit=jit))) < 1e-12


def test_float32_is_as_near_as_its_rounding():
    assert max(distances(both(cross_entropy, tf.float32))) < 1e-6


def test_bfloat16_is_no_farther_from_float64_than_the_whole():
    exact = both(cross_entropy)[1]
    chunked, plain = both(cross_entropy, tf.float32, tf.bfloat16)

    def error(values):
        pairs = zip(values[4:], exact[4:], strict=True)
        return [np.linalg.norm(np.asarray(a, np.float64) - b) / np.linalg.norm(b) for a, b in pairs]

    for mine, other in zip(error(chunked), error(plain), strict=True):
        assert mine < 1.05 * other


def test_an_open_number_of_rows_is_computed_in_chunks():
    kernel = tf.constant(draw(CHANNELS, CLASSES))

    @tf.function(input_signature=[tf.TensorSpec([None, CHANNELS], tf.float64), tf.TensorSpec([None], tf.int32)])
    def compute(hidden, labels):
        whole = LinearLogits(hidden, kernel, None, tf.float64)
        assert whole.or_logits() is whole
        return whole.compute([lambda logits, labels: cross_entropy(labels, logits)], labels)[0]

    for rows in (1, 10, 23):
        hidden, labels = draw(rows, CHANNELS), np.arange(rows, dtype=np.int32)
        expected = cross_entropy(tf.constant(labels), tf.constant(hidden) @ kernel)
        np.testing.assert_allclose(compute(hidden, labels), expected, rtol=1e-12)


def test_a_second_call_begins_with_zeros():
    """The sums of a gradient are changed in place."""
    hidden, kernel = tf.constant(draw(ROWS, CHANNELS)), tf.constant(draw(CHANNELS, CLASSES))
    labels = tf.zeros([ROWS], tf.int32)

    @tf.function(autograph=False)
    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            whole = LinearLogits(hidden, kernel, None, tf.float64)
            loss, _ = whole.compute_sum(
                [lambda logits, rows: cross_entropy(rows, logits)], labels, tf.ones([ROWS], tf.float64)
            )
        return tape.gradient(loss, kernel)

    first = gradient().numpy()
    assert (gradient().numpy() == first).all()


def test_a_frozen_kernel_has_no_gradient():
    hidden, kernel = tf.constant(draw(ROWS, CHANNELS)), tf.constant(draw(CHANNELS, CLASSES))
    batch = {"targets": tf.zeros([ROWS], tf.int32)}
    with tf.GradientTape() as tape:
        tape.watch([hidden, kernel])
        whole = LinearLogits(hidden, kernel, None, tf.float64, trains_kernel=False)
        loss, _ = loss_and_sums([cross_entropy], whole, batch, 1.0)
    d_hidden, d_kernel = tape.gradient(loss, [hidden, kernel])
    assert d_hidden is not None
    assert d_kernel is None


def test_a_loss_of_whole_examples_has_all_logits():
    hidden = tf.constant(draw(5, 7, CHANNELS))
    whole = LinearLogits(hidden, tf.constant(draw(CHANNELS, CLASSES)), None, tf.float64)
    batch = {"targets": tf.zeros([5, 7], tf.int32)}

    def spread(targets, logits):
        assert logits.shape == (5, 7, CLASSES)
        return tf.math.reduce_std(logits, axis=[1, 2])

    (total,) = weighted_sums([spread], whole, batch)
    assert total == tf.reduce_sum(spread(None, whole.logits))
    (nothing,) = weighted_sums([WholeBatch(lambda labels, outputs: outputs)], whole, batch)
    assert nothing == 0.0


def test_a_dense_layer_projects_where_the_pass_takes_it_and_the_logits_are_large():
    init = Initializer(0)
    dense, small = Dense(init, CHANNELS, CLASSES), Dense(init, CHANNELS, 10)
    x = tf.constant(draw(ROWS, CHANNELS), tf.float32)
    takes = Mode(training=False, defers_logits=True)
    found = dense.predict(x, takes)
    assert isinstance(found, LinearLogits)
    np.testing.assert_allclose(found.logits, dense(x), rtol=1e-6)
    assert (dense.predict(x, Mode(training=False)).numpy() == dense(x).numpy()).all()
    assert dense.predict(x[:4], takes).shape == (4, CLASSES)
    assert small.predict(x, takes).shape == (ROWS, 10)
