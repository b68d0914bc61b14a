"""Layers whose gradients are written out, against TensorFlow's own."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import kernels as kernel_gradients
from accumtrain.backprop.fixed_point import FLOATS, FixedPoint
from accumtrain.backprop.kernels import is_faster_by_products, kernel_dtype, kernel_gradient
from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.backprop.pullback import pullback, tape_pullback
from accumtrain.backprop.segments import Chain, Coupling, OnStreams
from accumtrain.models.layers import Conv, Initializer, Numerics
from accumtrain.models.norms import BatchNorm, GroupNorm
from accumtrain.models.resnet.blocks import PoolAndPad, Projection, Residual, Stem
from accumtrain.models.resnet.resnet import Unit
from accumtrain.models.resnet.revnet import Stems
from benchmarks.asked import bytes_asked_at_peak


def perturbed(module):
    for number, variable in enumerate(module.trainable_variables):
        variable.assign_add(0.1 * tf.random.stateless_normal(variable.shape, [number, 7]))
    return module


def of_variables(module, gradients):
    found = {variable.ref(): gradient for variable, gradient in gradients}
    return [found[variable.ref()] for variable in module.trainable_variables]


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(1, 1, "SAME"), (3, 1, "SAME"), (3, 2, "SAME"), (1, 2, "SAME"), (5, 1, "VALID")]
)
def test_pullback_of_a_convolution_is_tensorflows(size, stride, padding):
    conv = Conv(Initializer(1), size, 6, 10, stride, padding)
    x = tf.random.stateless_normal([4, 9, 9, 6], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        expected = conv(x)
    d_y = tf.random.stateless_normal(expected.shape, [3, 4])
    y, backward = conv.pullback(x, Mode(training=True))
    d_x, [(variable, d_kernel)] = backward(d_y, x)
    assert variable is conv.kernel
    taped = tape.gradient(expected, [x, conv.kernel], d_y)
    for actual, wanted in zip((y, d_x, d_kernel), (expected, *taped), strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize(("size", "dtype"), [(1, tf.float32), (1, tf.bfloat16), (3, tf.bfloat16)])
def test_a_kernels_gradient_as_products_is_the_convolutions(size, dtype):
    """Sums of small integers are exact in any order."""
    if not is_faster_by_products((size, size, 256, 8), kernel_dtype(dtype), width=4):
        pytest.skip(f"this CPU computes {dtype.name} in another dtype, whose products of this size are not faster")
    x, d_y = (tf.random.stateless_uniform([2, 5, 4, channels], [1, channels], -2, 3, tf.int32) for channels in (256, 8))
    x, d_y, shape = tf.cast(x, dtype), tf.cast(d_y, dtype), (size, size, 256, 8)
    gradient = tf.function(partial(kernel_gradient, x, d_y, shape, 1, "SAME"), autograph=False).get_concrete_function()
    assert "Conv2DBackpropFilter" not in {operation.type for operation in gradient.graph.get_operations()}
    x, d_y = tf.cast(x, tf.float32), tf.cast(d_y, tf.float32)
    expected = tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=shape, out_backprop=d_y, strides=[1, 1, 1, 1], padding="SAME"
    )
    np.testing.assert_array_equal(tf.cast(gradient(), tf.float32), expected)


@pytest.mark.parametrize(
    ("matrices", "size", "channels", "dtype", "width", "products"),
    [
        (False, 3, 256, tf.bfloat16, 56, True),
        (True, 3, 256, tf.bfloat16, 8, True),
        (True, 3, 256, tf.bfloat16, 9, False),
        (False, 3, 255, tf.bfloat16, 8, False),
        (False, 3, 256, tf.float32, 8, False),
        (False, 5, 256, tf.bfloat16, 8, False),
        (True, 1, 64, tf.bfloat16, 56, True),
        (True, 1, 64, tf.float32, 56, True),
    ],
)
def test_where_products_are_faster(monkeypatch, matrices, size, channels, dtype, width, products):
    """The measured rule (docs/kernels.md), with instructions for products of matrices and without."""
    monkeypatch.setattr(kernel_gradients, "_multiplies_matrices", lambda: matrices)
    assert is_faster_by_products((size, size, channels, 8), dtype, width) is products


def test_instructions_for_matrices_are_those_of_the_processor(monkeypatch):
    for instructions, expected in ((["avx512_bf16", "amx_bf16"], True), (["avx512_bf16"], False)):
        monkeypatch.setattr(kernel_gradients, "cpu", lambda names=instructions: {"instructions": names})
        assert kernel_gradients._multiplies_matrices.__wrapped__() is expected


def test_products_hold_nothing_from_the_forward_pass_on():
    """The input of a convolution is copied once the gradient is there."""

    @tf.function(autograph=False)
    def gradient(x, d_y):
        return kernel_gradient(x, d_y, (3, 3, 256, 8), 1, "SAME")

    image, d_image = (tf.TensorSpec([2, 5, 4, channels], tf.bfloat16) for channels in (256, 8))
    graph = gradient.get_concrete_function(image, d_image).graph
    x, d_y = graph.inputs
    for operation in x.consumers():
        assert d_y.op in operation.control_inputs


def residual(init, *, bottleneck=False, widths=(16, 16), stride=1, preactivated=True):
    return Residual(init, "batch", *widths, stride=stride, bottleneck=bottleneck, preactivated=preactivated)


MODULES = {
    "batch norm": lambda init: BatchNorm(init, 16),
    "group norm": lambda init: GroupNorm(init, 16),
    "residual behind a stem": lambda init: residual(init, preactivated=False),
    "bottleneck": lambda init: residual(init, bottleneck=True),
    "unit": lambda init: Unit(residual(init), None),
    "unit with projection": lambda init: Unit(residual(init, widths=(16, 32), stride=2), Projection(init, 16, 32, 2)),
    "unit with pooling": lambda init: Unit(residual(init, widths=(16, 32), stride=2), PoolAndPad(16, 32, 2)),
    "behind and before floats": lambda init: OnStreams(residual(init), FLOATS, tf.float32),
    "chain": lambda init: Chain("store", [residual(init), residual(init, preactivated=False)]),
}


@pytest.mark.parametrize("name", MODULES)
def test_pullback_is_the_gradient_of_the_call(name):
    module = perturbed(MODULES[name](Initializer(1)))
    x = tf.random.stateless_normal([4, 8, 8, 16], [1, 2])

    @tf.function(autograph=False)
    def both():
        with tf.GradientTape() as tape:
            tape.watch(x)
            expected = module(x, Mode(training=True))
        d_y = tf.random.stateless_normal(expected.shape, [3, 4])
        y, backward = pullback(module, x, Mode(training=True))
        d_x, gradients = backward(d_y)
        taped = tape.gradient(expected, [x, *module.trainable_variables], d_y)
        return [y, d_x, *of_variables(module, gradients)], [expected, *taped]

    for actual, expected in zip(*both(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


NUMBERS = FixedPoint(24)


def unit_of(numbers, shortcut, norm, dtype, keep=True):
    """A unit between streams of these numbers, with the layers of a RevNet; `keep` as in its later stages."""
    init = Initializer(1)
    numerics = Numerics(dtype, numbers, numbers)
    f, g = (
        Residual(init, norm, *widths, bottleneck=False, keep_activations=keep, numerics=numerics)
        for widths in ((16, 32), (32, 32))
    )
    drawn = () if shortcut is PoolAndPad else (init,)
    shortcuts = (shortcut(*drawn, 16, 32, 1, numerics) for _ in range(2))
    f, g, *both = (OnStreams(each, numbers, tf.float32) for each in (f, g, *shortcuts))
    return perturbed(Coupling(f, g, tuple(both), numbers))


@pytest.mark.parametrize("dtype", [tf.float32, pytest.param(tf.bfloat16, marks=pytest.mark.slow), tf.float16])
@pytest.mark.parametrize(("norm", "shortcut"), [("batch", Projection), ("group", PoolAndPad)])
@pytest.mark.parametrize(
    ("numbers", "keep"), [(FLOATS, True), (NUMBERS, True), (NUMBERS, False)], ids=["floats", "fixed point", "low peak"]
)
def test_pullback_of_a_coupling_is_the_gradient_of_the_call(numbers, keep, shortcut, norm, dtype):
    unit = unit_of(numbers, shortcut, norm, dtype, keep)
    values = tuple(tf.random.stateless_normal([4, 8, 8, 16], [1, seed]) for seed in (2, 3))
    x = tuple(numbers.encode(each * numbers.scale(tf.float32)) for each in values)
    with tf.GradientTape() as tape:
        tape.watch(x)
        expected = unit(x, Mode(training=True))
    d_y = tuple(tf.random.stateless_normal(stream.shape, [3, 4]) for stream in expected)
    mode = Mode(training=True, recording=True)
    y, backward = unit.pullback(x, mode)
    d_x, gradients = backward(d_y)
    wanted = tape.gradient(expected, [*x, *unit.trainable_variables], d_y)
    actual = [*d_x, *of_variables(unit, gradients)]
    for ours, theirs in zip(y, expected, strict=True):
        np.testing.assert_array_equal(tf.bitcast(ours, tf.int32), tf.bitcast(theirs, tf.int32))
    tolerance = 1e-5 if dtype == tf.float32 else 2e-2
    for ours, theirs in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=10 * tolerance)
    replayed = []
    _, d_x_again = unit.reverse(x, y, d_y, mode, lambda found: replayed.extend(found) or [])
    for ours, theirs in zip(d_x_again, d_x, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for again, gradient in zip(of_variables(unit, replayed), of_variables(unit, gradients), strict=True):
        np.testing.assert_array_equal(again, gradient)


@pytest.mark.parametrize(("norm", "shortcut"), [("batch", PoolAndPad), ("group", Projection)])
def test_a_unit_between_fixed_point_streams_computes_what_one_between_floats_does(shortcut, norm):
    """Values, gradients and batch statistics, to the last bits of float32."""
    values = tuple(tf.random.stateless_normal([4, 8, 8, 16], [1, seed]) for seed in (2, 3))
    d_y = tuple(tf.random.stateless_normal([4, 8, 8, 32], [3, seed]) for seed in (4, 5))
    found = []
    for numbers in (FLOATS, NUMBERS):
        unit, mode = unit_of(numbers, shortcut, norm, tf.float32), Mode(training=True, recording=True)
        y, backward = unit.pullback(tuple(numbers.encode(each * numbers.scale(tf.float32)) for each in values), mode)
        d_x, gradients = backward(d_y)
        statistics = [each for pair in mode.statistics.values() for each in pair]
        evaluated = unit(values, Mode(training=False))
        found.append([*map(numbers.read, y), *d_x, *of_variables(unit, gradients), *statistics, *evaluated])
    for of_floats, fixed in zip(*found, strict=True):
        np.testing.assert_allclose(fixed, of_floats, rtol=1e-5, atol=1e-6 * np.max(np.abs(of_floats)))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_replayed_residual_gives_the_bits_and_the_gradient_of_the_recorded_one(norm, keep):
    module = perturbed(Residual(Initializer(1), norm, 16, 16, bottleneck=False, keep_activations=keep))
    x = tf.random.stateless_normal([4, 8, 8, 16], [1, 2])

    @tf.function(autograph=False)
    def both():
        mode = Mode(training=True, recording=True)
        results = []
        for _ in range(2):  # the recorded pass, then its replay
            y, backward = module.pullback(x, mode)
            d_x, gradients = backward(tf.random.stateless_normal(y.shape, [3, 4]))
            results.append([y, d_x, *(gradient for _, gradient in gradients)])
            mode = mode.replay()
        return results

    for recorded, replayed in zip(*both(), strict=True):
        np.testing.assert_array_equal(recorded, replayed)


def test_a_replay_takes_the_statistics_from_the_recorded_pass():
    """With other statistics in their place the output is another: they are not computed again."""
    module = Residual(Initializer(1), "batch", 8, 8, bottleneck=False)
    x = tf.random.stateless_normal([4, 8, 8, 8], [1, 2])
    mode = Mode(training=True, recording=True)
    expected, _ = module.pullback(x, mode)
    norm = module.activations[0].norm
    mean, variance = mode.saved[norm]
    mode.saved[norm] = mean + 1.0, variance
    assert not np.allclose(module.pullback(x, mode.replay())[0], expected)


@pytest.mark.parametrize(("channels", "dtype"), [(16, tf.bfloat16), (48, tf.bfloat16), (24, tf.float32)])
def test_batch_norm_of_bfloat16_avoids_the_slow_kernels_of_onednn(channels, dtype):
    norm = perturbed(BatchNorm(Initializer(1), channels))
    low = tf.cast(tf.random.stateless_normal([4, 8, 8, channels], [1, 2]), tf.bfloat16)

    def of_both(x):
        mode = Mode(training=True, recording=True)
        y, backward = norm.pullback(x, mode)
        again, _ = norm.pullback(x, mode.replay())
        d_x, gradients = backward(tf.cast(tf.random.stateless_normal(x.shape, [3, 4]), x.dtype))
        return [y, d_x, again], [gradient for _, gradient in gradients]

    traced = tf.function(of_both, autograph=False)
    operations = traced.get_concrete_function(low).graph.get_operations()
    assert {operation.get_attr("T") for operation in operations if "BatchNorm" in operation.type} == {dtype}
    (y, d_x, again), gradients = traced(low)
    tf.debugging.assert_equal(again, y)
    assert y.dtype == d_x.dtype == tf.bfloat16
    if dtype == tf.float32:
        wide, wide_gradients = traced(tf.cast(low, tf.float32))
        for actual, expected in zip((y, again), (wide[0], wide[2]), strict=True):
            tf.debugging.assert_equal(actual, tf.cast(expected, tf.bfloat16))
        for actual, expected in zip((d_x, *gradients), (wide[1], *wide_gradients), strict=True):
            bound = 0.02 * np.abs(expected).max()
            np.testing.assert_allclose(tf.cast(actual, tf.float32), expected, rtol=0, atol=bound)


def test_group_norm_of_bfloat16_computes_in_float32():
    norm = perturbed(GroupNorm(Initializer(1), 16))
    low = tf.cast(tf.random.stateless_normal([4, 8, 8, 16], [1, 2]), tf.bfloat16)
    wide = norm(tf.cast(low, tf.float32), Mode(training=True))
    tf.debugging.assert_equal(norm(low, Mode(training=True)), tf.cast(wide, tf.bfloat16))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_variables_have_the_dtype_that_is_asked_for(dtype):
    init = Initializer(1, dtype)
    made = init.conv((3, 3, 2, 4)), init.dense((4, 2)), init.constant(1.0, 3, "gamma")
    assert [variable.dtype for variable in made] == [dtype] * 3


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
def test_two_stems_compute_what_one_of_all_channels_does(stems, images, mode):
    whole = Stem(Initializer(0), "batch", "imagenet", 3, 2 * CHANNELS)
    first, second = (stem.function for stem in stems.stems)
    whole.conv.kernel.assign(tf.concat([first.conv.kernel, second.conv.kernel], -1))
    together, streams = whole(images, mode), stems(images, mode)
    tf.debugging.assert_near(tf.concat(streams, -1), together, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("replaying", [False, True])
def test_gradients_of_two_stems_are_those_of_the_tape(stems, images, replaying):
    mode = Mode(training=True).replay() if replaying else Mode(training=True)
    (y, backward), (expected_y, expected_backward) = stems.pullback(images, mode), tape_pullback(stems, images, mode)
    d_y = tuple(tf.random.stateless_normal(stream.shape, [3, i]) for i, stream in enumerate(y))
    for stream, expected in zip(y, expected_y, strict=True):
        tf.debugging.assert_equal(stream, expected)
    (d_images, gradients), (expected_d_images, expected_gradients) = backward(d_y), expected_backward(d_y)
    tf.debugging.assert_near(d_images, expected_d_images, rtol=1e-5, atol=1e-5)
    found, wanted = of_variables(stems, gradients), of_variables(stems, expected_gradients)
    assert len(found) == len(gradients) == len(expected_gradients) == 6
    for gradient, expected in zip(found, wanted, strict=True):
        tf.debugging.assert_equal(gradient, expected)


def test_a_replay_of_two_stems_holds_one_at_a_time(stems, images):
    @tf.function(autograph=False)
    def gradients(images):
        y, backward = stems.pullback(images, Mode(training=True).replay())
        return [gradient for _, gradient in backward(tuple(tf.ones_like(stream) for stream in y))[1]]

    gradients(images)
    convolved = 4 * 8 * 32 * 32 * CHANNELS  # bytes of what one convolution gives; a stem takes three of them and more
    assert 3 * convolved < bytes_asked_at_peak(lambda: gradients(images), workspace=False) < 4 * convolved
