"""Dropout: its rate, independent draws, the same for every split of a window, and the gradients of plain operations."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode, example_draws
from accumtrain.models.transformers import attention
from accumtrain.models.transformers.attention import Attention
from accumtrain.models.transformers.dropout import LEVELS, Dropout, places_of_shares
from tests.models.transformers.reference import attend

SEED = tf.constant([7, 1])
UNLIKELY = 4.5  # standard deviations


def mode_for(examples, seed=SEED, index=0, parts=1):
    return Mode(training=True, recording=True, draws=example_draws(seed, tf.constant(index), parts, examples))


def kept(layer, shape, mode):
    return layer(tf.ones(shape), mode).numpy() > 0


@pytest.mark.parametrize("shape", [(40, 50, 64), (900, 131), (30, 7, 11, 43)])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_elements_are_dropped_at_the_rate_and_the_mean_is_kept(shape, rate):
    layer, mode = Dropout(rate, 3), mode_for(shape[0])
    y, backward = layer.pullback(tf.ones(shape), mode)
    d_x, gradients = backward(tf.fill(shape, 2.0))
    exact = round(rate * LEVELS) / LEVELS
    assert set(np.unique(y)) == {0.0, np.float32(1 / (1 - exact))}
    np.testing.assert_array_equal(d_x, 2 * y)
    assert gradients == []
    deviation = np.sqrt(rate * (1 - rate) / y.numpy().size)
    assert abs((y.numpy() == 0).mean() - exact) < UNLIKELY * deviation
    np.testing.assert_array_equal(layer(tf.ones(shape), mode), y)
    np.testing.assert_array_equal(layer(tf.ones(shape), Mode(training=False)), tf.ones(shape))


def correlation(one, other, rate):
    """In standard deviations of that of independent draws."""
    return np.mean((one - rate) * (other - rate)) / (rate * (1 - rate)) * np.sqrt(one.size)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_draws_are_independent(rate):
    """Of neighbours along each axis, of layers, of updates, and of other places of other examples."""
    shape = (64, 32, 96)
    draws = ~kept(Dropout(rate, 0), shape, mode_for(64))
    found = {}
    for axis in range(3):
        for shift in (1, 2, 3, 16):
            shifted = np.roll(draws, shift, axis)
            found[axis, shift] = correlation(draws, shifted, rate)
            if axis:
                found["diagonal", axis, shift] = correlation(draws, np.roll(shifted, 1, 0), rate)
    for number in (1, 2, 1000):
        found["layer", number] = correlation(draws, ~kept(Dropout(rate, number), shape, mode_for(64)), rate)
    for update in (2, 3, 1000):
        other = ~kept(Dropout(rate, 0), shape, mode_for(64, tf.constant([7, update])))
        found["update", update] = correlation(draws, other, rate)
    assert max(map(abs, found.values())) < UNLIKELY, found


def test_the_number_that_is_dropped_varies_as_that_of_independent_draws():
    """Of each example, token and channel: chi-square, whose deviation from the mean n is sqrt(2 n)."""
    draws, rate = ~kept(Dropout(0.25, 5), (96, 64, 128), mode_for(96)), 0.25
    for axes in [(1, 2), (0, 2), (0, 1), (2,), (0,)]:
        counts = draws.sum(axes)
        each = draws.size // counts.size
        square = ((counts - rate * each) ** 2 / (rate * (1 - rate) * each)).sum()
        assert abs(square - counts.size) < UNLIKELY * np.sqrt(2 * counts.size), axes


def test_micro_batches_and_replicas_draw_as_the_window():
    layer, shape = Dropout(0.5, 2), (3, 4, 5)
    whole = kept(layer, (12, 4, 5), mode_for(12))
    parts = [kept(layer, shape, mode_for(3, index=index, parts=4)) for index in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_padding_changes_no_draw():
    layer, mode = Dropout(0.5, 2), mode_for(6)
    np.testing.assert_array_equal(kept(layer, (6, 9, 8), mode)[:, :5], kept(layer, (6, 5, 8), mode))
    long, short = (
        layer.keep(tf.ones([6, 3, tokens, tokens]), places_of_shares(3, 0, tokens, tokens), layer.seeds(mode))
        for tokens in (10, 7)
    )
    np.testing.assert_array_equal(long[..., :7, :7], short)


def test_shares_of_a_long_text_have_draws_of_their_own():
    places = places_of_shares(16, 8000, 2, 8192).numpy()
    assert len(np.unique(places)) == places.size


@pytest.mark.parametrize("compiled", [False, True])
def test_graphs_draw_as_eager_code(compiled):
    """From the same numbers of examples, which XLA draws otherwise."""
    layer, numbers = Dropout(0.3, 4), tf.random.stateless_uniform([6], [1, 2])

    @tf.function(autograph=False, jit_compile=compiled)
    def run(x, numbers):
        return layer(x, Mode(training=True, draws=lambda _: numbers))

    expected = layer(tf.ones([6, 5, 7]), Mode(training=True, draws=lambda _: numbers))
    np.testing.assert_array_equal(run(tf.ones([6, 5, 7]), numbers), expected)


def test_a_pass_without_draws_is_refused():
    with pytest.raises(ValueError, match="draws"):
        Dropout(0.25, 3)(tf.ones([2, 1]), Mode(training=True))


def attention_gradient(layer, x, d_y, mode):
    @tf.function(autograph=False)
    def run():
        y, backward = layer.pullback(x, mode())
        return y, backward(d_y)[0]

    return [tensor.numpy() for tensor in run()]


INPUTS = tf.random.stateless_normal([4, 11, 3 * 6], [1, 2], dtype=tf.float64)
UPSTREAM = tf.random.stateless_normal([4, 11, 6], [3, 4], dtype=tf.float64)


def test_attention_drops_shares_with_the_gradient_of_plain_operations():
    dropout, mode = Dropout(0.4, 1), partial(mode_for, 4)
    seeds, places = dropout.seeds(mode()), places_of_shares(3, 0, 11, 11)
    ones = tf.ones([4, 3, 11, 11], tf.float64)
    factors = dropout.drop(ones, dropout.keep(ones, places, seeds))
    with tf.GradientTape() as tape:
        tape.watch(INPUTS)
        plain = attend(INPUTS, 3, None, factors)
    y, d_x = attention_gradient(Attention(3, dropout), INPUTS, UPSTREAM, mode)
    np.testing.assert_allclose(y, plain, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(d_x, tape.gradient(plain, INPUTS, UPSTREAM), rtol=1e-11, atol=1e-12)
    assert np.any(np.abs(y - attend(INPUTS, 3, None)) > 0.01)
    np.testing.assert_array_equal(
        Attention(3, dropout)(INPUTS, Mode(training=False)), Attention(3)(INPUTS, Mode(training=False))
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("replaying", [False, True])
def test_queries_in_parts_draw_as_all_at_once(monkeypatch, replaying, causal):
    def mode():
        found = mode_for(4)
        return found.replay() if replaying else found

    layer = Attention(3, Dropout(0.4, 1), causal=causal)
    whole = attention_gradient(layer, INPUTS, UPSTREAM, mode)
    monkeypatch.setattr(attention, "QUERIES", 4)
    for one, other in zip(attention_gradient(layer, INPUTS, UPSTREAM, mode), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
