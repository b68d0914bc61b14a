"""Streams in fixed point, whose sums are exact and found when they leave their range, and sums of floats in place."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import fixed_point as module
from accumtrain.backprop.fixed_point import FLOATS, FixedPoint, add, subtract
from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.backprop.replay import save_values_for_backward
from accumtrain.backprop.tracing import for_xla
from accumtrain.engine.window import Window
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.sgd import SGD
from benchmarks.asked import bytes_asked_at_peak
from tests.engine.small import CLASSES, examples, revnet38

BITS = 24
NUMBERS = FixedPoint(BITS)
ADD_IN_PLACE = partial(add, in_place=True)
SUMS = [NUMBERS.add, partial(NUMBERS.add, in_place=True), NUMBERS.differentiable_add]


def values(seed, dtype=tf.float32, size=1.0):
    return tf.cast(size * tf.random.stateless_normal([7, 33], [seed, 2]), dtype)


def scaled(value, dtype=tf.float32):
    return value * tf.cast(NUMBERS.scale(dtype), value.dtype)


def integers(value):
    """Return the integers of float32 values, by NumPy."""
    return np.trunc(np.asarray(value, np.float64) * 2.0**BITS).astype(np.int64)


def test_values_are_cut_off_behind_the_last_bit_and_sums_lose_none():
    first, others = values(1), [values(seed, size=3.0) for seed in range(2, 9)]
    stream, expected = NUMBERS.encode(scaled(first)), integers(first)
    for other in others:
        stream, expected = NUMBERS.add(stream, scaled(other)), expected + integers(other)
    np.testing.assert_array_equal(NUMBERS.read(stream, tf.float64), expected / 2.0**BITS)
    np.testing.assert_array_equal(NUMBERS.read(stream), (expected / 2.0**BITS).astype(np.float32))
    np.testing.assert_array_equal(NUMBERS.read(stream, factor=2.0**BITS), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float64])
@pytest.mark.parametrize("add", SUMS)
def test_a_difference_undoes_a_sum_to_the_bit(dtype, add):
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    begin = stream = NUMBERS.encode(scaled(values(1, wide), wide))
    added = [scaled(values(seed, dtype, size=2.0), wide) for seed in range(2, 40)]
    for value in added:
        stream = add(stream, value)
    assert NUMBERS.reach((stream,)) < 1
    for value in reversed(added):
        stream = NUMBERS.subtract(stream, value)
    integer = module.INTEGERS[wide]
    np.testing.assert_array_equal(tf.bitcast(stream, integer), tf.bitcast(begin, integer))


def test_values_kept_in_place_of_streams_are_read_alike():
    streams = tuple(NUMBERS.encode(scaled(values(seed, size=3.0))) for seed in (1, 2))
    same, kept = save_values_for_backward(NUMBERS, tf.bfloat16, streams)
    later = kept(tf.zeros([]))
    for stream, unchanged, again in zip(streams, same, later, strict=True):
        np.testing.assert_array_equal(NUMBERS.read(unchanged), NUMBERS.read(stream))
        assert again.dtype == tf.float32
        assert np.any(NUMBERS.read(again) != NUMBERS.read(stream)), "bfloat16 holds less"
        for factor in (1.0, NUMBERS.factor(tf.bfloat16)):
            expected = NUMBERS.read(stream, tf.bfloat16, factor)
            np.testing.assert_array_equal(NUMBERS.read(again, tf.bfloat16, factor), expected)


@pytest.mark.parametrize(("dtype", "rest"), [(tf.float32, tf.int8), (tf.float64, tf.int16)])
@pytest.mark.parametrize("compute", [tf.function, partial(tf.function, jit_compile=True)], ids=["graph", "xla"])
def test_a_stream_is_restored_from_its_values_and_their_rest(compute, dtype, rest):
    limit = 2 ** (8 * dtype.size - 2)
    near = limit - 1 - np.arange(300)
    numbers = np.concatenate([near, -near, near // 3, -(near // 3), near // 2**20, [0, 1, -1, -limit]])
    stream = tf.bitcast(tf.constant(numbers, module.INTEGERS[dtype]), dtype)
    left = NUMBERS.rest(stream)
    assert left.dtype == rest
    assert np.any(left != 0)
    again = compute(lambda: NUMBERS.restore(NUMBERS.read(stream), NUMBERS.rest(stream)))()
    np.testing.assert_array_equal(tf.bitcast(again, module.INTEGERS[dtype]), numbers)


def test_float64_has_32_bits_more():
    value = values(1, tf.float64)
    error = NUMBERS.read(NUMBERS.encode(scaled(value, tf.float64))) - value
    assert float(tf.reduce_max(tf.abs(error))) < 2.0**-52


@pytest.mark.parametrize("number", [64.0, 127.9, 200.0, 1e30, -65.0, -1e30, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("before", [0.0, 63.9, -63.9])
def test_what_leaves_the_range_is_told(before, number):
    if abs(before + number) < 64:
        number = 2 * number
    stream = NUMBERS.encode(scaled(tf.fill([50], before)))
    assert NUMBERS.reach((stream, stream)) < 1
    value = np.zeros(50, np.float32)
    value[31] = number
    assert NUMBERS.reach((stream, NUMBERS.add(stream, scaled(tf.constant(value))))) >= 1


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float64])
@pytest.mark.parametrize("change", [None, *SUMS[:2], NUMBERS.subtract], ids=["encode", "add", "in place", "subtract"])
def test_xla_tells_what_leaves_the_range(change, dtype):
    """XLA makes 0 of NaN, and the largest integer of infinity."""
    wide = tf.float64 if dtype == tf.float64 else tf.float32

    @partial(tf.function, jit_compile=True, autograph=False)
    def reach(before, value):
        if change is None:
            return NUMBERS.reach((NUMBERS.encode(tf.cast(value, wide)),))
        stream = NUMBERS.encode(scaled(tf.fill([50], before), wide))
        return NUMBERS.reach((change(stream, value),))

    for before in (0.0, -63.9):
        before = tf.constant(before, wide)
        value = np.zeros(50)
        assert reach(before, tf.constant(value, dtype)) < 1
        for number in (np.inf, -np.inf, np.nan):
            value[31] = number
            assert reach(before, scaled(tf.constant(value, dtype), wide)) >= 1, number


def test_the_limit_is_that_of_a_quarter_of_the_integers():
    assert NUMBERS.limit(tf.float32) == NUMBERS.limit(tf.float64) == 64.0
    assert FixedPoint(20).limit(tf.float32) == 1024.0


@pytest.mark.parametrize(("integer", "stream"), [(np.int32, tf.float32), (np.int64, tf.float64)])
def test_the_reach_is_the_largest_share_of_the_limit(integer, stream):
    limit = 2 ** (8 * np.dtype(integer).itemsize - 2)
    for largest, share in [(0, 0.0), (limit // 2, 0.5), (-3 * limit // 4 - 1, 0.75), (limit, 1.0), (-limit - 1, 1.0)]:
        numbers = np.array([1, -1, largest, 5], integer)
        others = np.array([3], integer)
        found = NUMBERS.reach(tuple(tf.bitcast(tf.constant(each), stream) for each in (numbers, others)))
        np.testing.assert_allclose(found, share, atol=2.0**-22)
        assert (found >= 1) == (share >= 1)
    for last in (limit - 1, -limit):
        assert NUMBERS.reach((tf.bitcast(tf.constant([last], integer), stream),)) < 1


def test_gradients_are_those_of_the_values():
    x, value = NUMBERS.encode(scaled(values(1))), values(2)
    with tf.GradientTape() as tape:
        tape.watch([x, value])
        y = NUMBERS.differentiable_read(NUMBERS.differentiable_add(x, scaled(value)), factor=4.0)
    d_x, d_value = tape.gradient(y, [x, value], 0.25 * values(3))
    np.testing.assert_array_equal(d_x, values(3))
    np.testing.assert_array_equal(d_value, values(3))
    with tf.GradientTape() as tape:
        tape.watch(value)
        stream = NUMBERS.differentiable_encode(scaled(value))
    np.testing.assert_array_equal(tape.gradient(stream, value, values(3)), values(3))


def test_an_evaluation_and_0_bits_compute_with_floats():
    assert NUMBERS.for_mode(EVALUATION) == FLOATS == FixedPoint(0)
    assert NUMBERS.for_mode(Mode(training=True)) == NUMBERS
    x, value = values(1), values(2, tf.bfloat16)
    np.testing.assert_array_equal(FLOATS.add(x, value), x + tf.cast(value, tf.float32))
    assert FLOATS.encode(x) is x
    assert FLOATS.read(x, tf.bfloat16).dtype == tf.bfloat16
    assert (FLOATS.scale(tf.float64), FLOATS.factor(tf.float32)) == (1.0, 1.0)


def test_a_gpu_computes_integers_by_xla_with_the_same_bits(monkeypatch):
    """TensorFlow's own kernels for int32 run on the host. Here XLA compiles for the CPU."""
    x, value = scaled(values(1)), scaled(values(2))
    expected = NUMBERS.add(NUMBERS.encode(x), value)
    monkeypatch.setattr(module, "on_gpu", lambda: True)
    found = NUMBERS.add(NUMBERS.encode(x), value)
    np.testing.assert_array_equal(tf.bitcast(found, tf.int32), tf.bitcast(expected, tf.int32))
    np.testing.assert_array_equal(NUMBERS.read(found), NUMBERS.read(expected))
    assert NUMBERS.reach((found,)) < 1


@pytest.mark.parametrize(
    "memory",
    [pytest.param("store", marks=pytest.mark.slow), pytest.param("recompute", marks=pytest.mark.slow), "reverse"],
)
def test_an_update_whose_streams_left_the_range_is_not_made(memory):
    model = build_model(revnet38(memory=memory, units=(2, 1)), ModelSpec((8, 8, 3), CLASSES, "float32", seed=3))
    window = Window(model, SGD(learning_rate=0.1), micro_steps=1)
    kernel = model.segments[1].units[-1].g.function.convs[-1].kernel
    within = kernel.numpy()
    step = tf.function(lambda: (window.accumulate(examples(8, (8, 8, 3))), window.commit())[1], autograph=False)
    update = step()
    assert (bool(update["finite"]), bool(update["in_range"])) == (True, True)
    kernel.assign(1e4 * within)
    before = [variable.numpy() for variable in window.variables_]
    update = step()
    assert (bool(update["finite"]), bool(update["in_range"]), int(window.step)) == (False, False, 1)
    for variable, value in zip(window.variables_, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    kernel.assign(within)
    assert bool(step()["in_range"])


def normal(count, dtype, seed):
    return tf.cast(tf.random.stateless_normal([count, 4, 3], [seed, 0]), dtype)


@pytest.mark.parametrize("signature", [None, [None, 4, 3]], ids=["known batch", "unknown batch"])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_a_sum_in_place_has_the_bits_of_converting_the_value_as_a_whole(count, signature):
    stream, value = normal(count, tf.float32, 1), normal(count, tf.bfloat16, 2)
    shapes = [tf.TensorSpec(signature or [count, 4, 3], dtype) for dtype in (tf.float32, tf.bfloat16)]
    total = tf.function(ADD_IN_PLACE, autograph=False, input_signature=shapes)(stream, value)
    tf.debugging.assert_equal(total, stream + tf.cast(value, tf.float32))
    tf.debugging.assert_equal(
        tf.function(subtract, autograph=False, input_signature=shapes)(total, value), total - tf.cast(value, tf.float32)
    )


def test_a_difference_of_one_precision_is_one_operation():
    stream, value = normal(4, tf.float32, 1), normal(4, tf.float32, 2)
    traced = tf.function(subtract, autograph=False)
    tf.debugging.assert_equal(traced(stream, value), add(stream, -value))
    types = [operation.type for operation in traced.get_concrete_function(stream, value).graph.get_operations()]
    assert [name for name in types if name not in ("Placeholder", "Identity")] == ["Sub"]


def test_xla_is_given_a_plain_sum():
    stream, value = normal(4, tf.float32, 1), normal(4, tf.bfloat16, 2)

    @tf.function(autograph=False)
    def traced(stream, value):
        with for_xla():
            return ADD_IN_PLACE(stream, value)

    tf.debugging.assert_equal(traced(stream, value), add(stream, value))
    operations = {operation.type for operation in traced.get_concrete_function(stream, value).graph.get_operations()}
    assert "AddV2" in operations
    assert not any("Scatter" in name for name in operations)


def test_a_stream_that_is_still_needed_stays_as_it_was():
    stream, value = normal(4, tf.float32, 1), normal(4, tf.bfloat16, 2)
    before = stream.numpy()
    three = tf.function(lambda *xy: (xy[0] * 2, ADD_IN_PLACE(*xy), xy[0] * 3), autograph=False)(stream, value)
    assert (stream.numpy() == before).all()
    assert (three[0].numpy() == 2 * before).all()
    assert (three[2].numpy() == 3 * before).all()


def test_a_sum_in_place_takes_half_of_what_converting_the_value_takes():
    source, value = tf.ones([64, 256, 256]), tf.ones([64, 256, 256], tf.bfloat16)

    def peak(add_):
        compiled = tf.function(lambda source, value: tf.reduce_max(add_(source * 2, value)), autograph=False)
        compiled(source, value)
        return bytes_asked_at_peak(lambda: compiled(source, value))

    stream = source.shape.num_elements() * 4
    assert peak(add) >= 2 * stream
    assert peak(ADD_IN_PLACE) < 1.75 * stream
