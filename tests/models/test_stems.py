"""Two stems, one for each stream: what one of twice the channels computes, differentiated one after the other."""

from __future__ import annotations

import pytest
import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS
from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.backprop.pullback import tape_pullback
from accumtrain.models.blocks import Stem
from accumtrain.models.layers import Initializer
from accumtrain.models.revnet import OnStreams, Stems
from benchmarks.asked import bytes_asked_at_peak

CHANNELS = 16


@pytest.fixture
def images():
    return tf.random.stateless_normal([8, 64, 64, 3], [1, 2])


@pytest.fixture
def stems():
    init = Initializer(0)
    parts = (Stem(init, "batch", "imagenet", 3, CHANNELS) for _ in range(2))
    return Stems(*(OnStreams(part, FLOATS, tf.float32, scales=False) for part in parts))


@pytest.mark.parametrize("mode", [EVALUATION, Mode(training=True)], ids=["evaluation", "training"])
def test_compute_what_one_of_all_channels_does(stems, images, mode):
    whole = Stem(Initializer(0), "batch", "imagenet", 3, 2 * CHANNELS)
    first, second = (stem.function for stem in stems.stems)
    whole.conv.kernel.assign(tf.concat([first.conv.kernel, second.conv.kernel], -1))
    together, streams = whole(images, mode), stems(images, mode)
    tf.debugging.assert_near(tf.concat(streams, -1), together, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("replaying", [False, True])
def test_gradients_are_those_of_the_tape(stems, images, replaying):
    mode = Mode(training=True).replay() if replaying else Mode(training=True)
    (y, backward), (expected_y, expected_backward) = stems.pullback(images, mode), tape_pullback(stems, images, mode)
    d_y = tuple(tf.random.stateless_normal(stream.shape, [3, i]) for i, stream in enumerate(y))
    for stream, expected in zip(y, expected_y, strict=True):
        tf.debugging.assert_equal(stream, expected)
    (d_images, gradients), (expected_d_images, expected_gradients) = backward(d_y), expected_backward(d_y)
    tf.debugging.assert_near(d_images, expected_d_images, rtol=1e-5, atol=1e-5)
    of_variable = {variable.ref(): gradient for variable, gradient in gradients}
    assert len(of_variable) == len(expected_gradients) == 6
    for variable, expected in expected_gradients:
        tf.debugging.assert_equal(of_variable[variable.ref()], expected)


def test_are_initialised_as_parts_of_one():
    whole, part = (Stem(Initializer(0), "batch", "imagenet", 3, 64 // parts, parts=parts) for parts in (1, 2))
    assert float(tf.math.reduce_std(part.conv.kernel)) == pytest.approx(
        float(tf.math.reduce_std(whole.conv.kernel)), rel=0.03
    )


def test_a_replay_holds_one_at_a_time(stems, images):
    @tf.function(autograph=False)
    def gradients(images):
        y, backward = stems.pullback(images, Mode(training=True).replay())
        return [gradient for _, gradient in backward(tuple(tf.ones_like(stream) for stream in y))[1]]

    gradients(images)
    convolved = 4 * 8 * 32 * 32 * CHANNELS  # bytes of what one convolution gives; a stem takes three of them and more
    assert 3 * convolved < bytes_asked_at_peak(lambda: gradients(images), workspace=False) < 4 * convolved
