"""Sums with a value of low precision: the bits of converting it first, in less memory, and no other tensor changes."""

from functools import partial

import pytest
import tensorflow as tf

from accumtrain.backprop.fixed_point import add, subtract
from accumtrain.backprop.tracing import for_xla
from benchmarks.asked import bytes_asked_at_peak

ADD_IN_PLACE = partial(add, in_place=True)


def normal(count, dtype, seed):
    return tf.cast(tf.random.stateless_normal([count, 4, 3], [seed, 0]), dtype)


@pytest.mark.parametrize("signature", [None, [None, 4, 3]], ids=["known batch", "unknown batch"])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_same_bits_as_converted_as_a_whole(count, signature):
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


def test_takes_half_of_what_converting_it_takes():
    source, value = tf.ones([64, 256, 256]), tf.ones([64, 256, 256], tf.bfloat16)

    def peak(add_):
        compiled = tf.function(lambda source, value: tf.reduce_max(add_(source * 2, value)), autograph=False)
        compiled(source, value)
        return bytes_asked_at_peak(lambda: compiled(source, value))

    stream = source.shape.num_elements() * 4
    assert peak(add) >= 2 * stream
    assert peak(ADD_IN_PLACE) < 1.75 * stream
