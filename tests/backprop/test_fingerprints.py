"""Fingerprints of streams, from a stage to the scalars of an update: a reversal gave the bits that were computed."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import fixed_point as module
from accumtrain.backprop.fixed_point import fingerprint_streams
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain, Coupling, Stage
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.optim.sgd import SGD

BITS, RANGE = 16, 2.0**8  # of the grid, and up to where float32 adds its multiples exactly


class Scale(tf.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = tf.Variable(factor)

    def __call__(self, x, mode):
        return tf.sin(x) * self.factor


class OnGrid(tf.Module):
    """Rounds the values of a function to multiples of 2^-BITS. Sums of floats are exact then, but for large ones."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def __call__(self, x, mode):
        y = self.function(x, mode)
        return tf.custom_gradient(lambda y: (tf.round(y * 2**BITS) / 2**BITS, lambda d_y: d_y))(y)


def stage(size, *, shortcuts=False, exact=True, count=2):
    """Units that add values up to `size` to each stream."""

    def unit(number):
        identity = OnGrid(lambda x, mode: x)
        pair = (identity, identity) if shortcuts and number == 0 else None
        return Coupling(OnGrid(Scale(size)), OnGrid(Scale(size)), pair)

    return Stage("reverse", [unit(number) for number in range(count)], exact=exact)


def streams():
    """On the grid."""
    return tuple(tf.round(tf.random.stateless_normal([4, 3, 3, 2], [seed, 2]) * 2**BITS) / 2**BITS for seed in (1, 2))


def inexact(segment, x):
    @tf.function(autograph=False)
    def run():
        mode = Mode(training=True, recording=True)
        y, backward = segment.forward(x, mode, lambda gradients: [])
        reversed_, _ = backward(y, tuple(tf.ones_like(each) for each in y))
        return reversed_, tf.stack(mode.inexact) if mode.inexact else None

    return run()


def test_marks_of_the_same_bits_are_equal_and_any_change_shows():
    x = tf.random.stateless_normal([1000, 7], [1, 2])
    (same, _), mark = fingerprint_streams((x, x + 1.0))
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(mark, fingerprint_streams((tf.identity(x), x + 1.0))[1])
    assert mark.shape == (2,)
    for place in ((0, 0), (999, 6), (500, 3)):
        changed = x.numpy()
        changed[place] = np.nextafter(changed[place], np.float32(9.0))
        assert np.any(fingerprint_streams((tf.constant(changed), x + 1.0))[1] != mark), place
    assert np.any(fingerprint_streams((x + 1.0, x))[1] != mark), "the streams in another order"


def test_the_mark_of_float64_and_of_what_is_not_finite():
    x = tf.constant([1.0, 2.0**-40, np.inf, np.nan], tf.float64)
    assert np.array_equal(fingerprint_streams(x)[1], fingerprint_streams(tf.identity(x))[1])
    assert np.any(fingerprint_streams(x)[1] != fingerprint_streams(x + tf.constant([2.0**-50, 0, 0, 0], tf.float64))[1])


@pytest.mark.parametrize("elsewhere", ["on_gpu", "is_for_xla"])
def test_on_a_gpu_and_for_xla_there_is_no_mark(monkeypatch, elsewhere):
    monkeypatch.setattr(module, elsewhere, lambda: True)
    x = tf.ones([2])
    assert fingerprint_streams(x) == (x, None)
    assert inexact(stage(2 * RANGE), streams())[1] is None


@pytest.mark.parametrize("shortcuts", [False, True])
@pytest.mark.parametrize("count", [2, 5])
def test_a_reversal_within_the_range_is_exact(shortcuts, count):
    x = streams()
    found, told = inexact(stage(1.0, shortcuts=shortcuts, count=count), x)
    assert told.numpy().tolist() == [False]
    for actual, expected in zip(found, x, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("shortcuts", [False, True])
def test_a_reversal_beyond_the_range_is_told(shortcuts):
    found, told = inexact(stage(16 * RANGE, shortcuts=shortcuts, count=3), streams())
    assert told.numpy().tolist() == [True]
    if not shortcuts:
        assert any(np.any(actual != expected) for actual, expected in zip(found, streams(), strict=True))


def test_nothing_is_told_where_nothing_is_reversed_or_exactness_is_not_wanted():
    assert inexact(stage(2 * RANGE, exact=False), streams())[1] is None
    assert inexact(stage(2 * RANGE, shortcuts=True, count=1), streams())[1] is None, "one unit, whose input is kept"


@pytest.fixture
def step():
    """A step of two micro-steps over a reversed stage whose values grow by a factor that the test assigns."""

    split, join = (lambda x, mode: (x, x)), (lambda x, mode: tf.reduce_mean(x[0] + x[1], axis=[1, 2]))
    reversed_ = stage(1.0)
    model = Model([Chain("store", [split]), reversed_, Chain("store", [join])])
    return Step(Window(model, SGD(learning_rate=1e-9), micro_steps=2)), reversed_.units[0].f.function.factor


def batches():
    batch = {"inputs": streams()[0], "targets": tf.constant([0, 1, 0, 1])}
    return iter(tf.data.Dataset.from_tensors(batch).repeat())


def test_an_update_says_whether_its_reversals_were_exact(step):
    step, factor = step
    for size, exact in [(1.0, True), (16 * RANGE, False), (1.0, True)]:
        factor.assign(size)
        step.accumulate(batches(), 2)
        told = step.commit()
        assert (bool(told["exact"]), bool(told["compared"])) == (exact, True)


def test_of_several_updates_in_one_call_one_inexact_is_enough(step):
    step, factor = step
    assert bool(step.updates(batches(), 3)["exact"])
    factor.assign(16 * RANGE)
    # of zeros the values are zeros, whatever the factor
    images = tf.repeat(tf.stack([tf.zeros_like(streams()[0]), streams()[0]]), [5, 1], axis=0)
    for inexact_at in range(3):
        rolled = tf.roll(images, 1 + 2 * inexact_at, axis=0)
        labels = tf.tile([[0, 1, 0, 1]], [6, 1])
        stream = iter(tf.data.Dataset.from_tensor_slices({"inputs": rolled, "targets": labels}))
        assert not bool(step.updates(stream, 3)["exact"]), inexact_at
