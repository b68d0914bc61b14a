"""Streams of a model from outside: what is refused, and what leaves their range and comes back."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain, Stage
from accumtrain.backprop.streams import JoinStreams, TwoStreams, couple

VALUES = tf.constant([[0.5, -0.25, 1.0]] * 4)
TRAINING = Mode(training=True)


def double(x, mode):
    return 2.0 * x


def model_of(*units, begin=22, end=22, split_inputs=None):
    segments = [Chain("store", [TwoStreams(begin)]), Stage("reverse", units), Chain("store", [JoinStreams(end)])]
    return Model(segments, split_inputs=split_inputs)


@pytest.mark.parametrize("bits", [-1, 27, 100, 2.5, "22", None, True])
@pytest.mark.parametrize("build", [TwoStreams, JoinStreams, lambda bits: couple(double, double, bits)])
def test_numbers_of_other_bits_are_refused(build, bits):
    with pytest.raises(ValueError, match=f"snap_bits={bits!r}: must be a whole number from 0 to 26; use 22, or 0"):
        build(bits)


@pytest.mark.parametrize("bits", [(18, 22, 22), (22, 18, 22), (22, 22, 18), (22, 22, 0), (0, 22, 22)])
def test_streams_are_read_as_the_numbers_that_were_written(bits):
    begin, of_unit, end = bits
    with pytest.raises(ValueError, match=r"has snap_bits=\d+, but its streams have \d+; give TwoStreams, all units"):
        model_of(couple(double, double, of_unit), begin=begin, end=end)


def test_stages_one_after_the_other_may_have_other_numbers():
    parts = [[TwoStreams(bits), couple(double, double, bits), JoinStreams(bits)] for bits in (18, 22)]
    Model([Chain("store", layers) for layers in parts])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mode: x[:, :1],
        lambda x, mode: tf.concat([x, x], axis=-1),
        lambda x, mode: tf.reduce_mean(x, axis=-1, keepdims=True),
        lambda x, mode: tf.cast(x, tf.int32),
        lambda x, mode: (x, x),
        lambda x, mode: None,
    ],
)
def test_functions_that_change_shape_or_make_no_floats_are_refused(function):
    for unit in (couple(function, double), couple(double, function)):
        with pytest.raises(ValueError, match=r"<lambda> makes (.|\n)* of float32 \(4, 3\), but a sum"):
            model_of(unit)(VALUES, TRAINING)


@pytest.mark.parametrize("dtype", [tf.int32, tf.bfloat16, tf.float16])
def test_streams_are_made_of_float32_or_float64(dtype):
    with pytest.raises(ValueError, match=rf"TwoStreams got {dtype.name} \(4, 3\), but takes float32 or float64"):
        TwoStreams()(tf.cast(VALUES, dtype), TRAINING)


@pytest.mark.parametrize("split", [lambda x: x, lambda x: (x, None), lambda x: (x, [x]), lambda x: [x, {}]])
def test_inputs_are_split_into_a_pair(split):
    with pytest.raises(ValueError, match="must be a pair, the input of the first segment and a dict of tensors"):
        model_of(couple(double, double), split_inputs=split)(VALUES)


@pytest.mark.parametrize("memory", ["reverse", "Store", "", 40])
def test_a_chain_knows_its_memory(memory):
    with pytest.raises(ValueError, match=f"memory={memory!r}: a Chain has none of this name; choose from store, rec"):
        Chain(memory, [])


def test_a_stage_knows_its_memory():
    with pytest.raises(ValueError, match="memory='revers': a Stage has none of this name; choose from store, recom"):
        Stage("revers", [])


@pytest.mark.parametrize("number", [1e6, -1e6, np.inf, np.nan])
def test_what_leaves_the_range_and_comes_back_is_told(number):
    """The second unit brings the integers back to those before: both add the smallest."""

    def huge(x, mode):
        return tf.zeros_like(x) + number

    mode = Mode(training=True)
    logits = model_of(couple(huge, huge), couple(huge, huge))(VALUES, mode)
    assert np.all(np.isnan(logits))
    assert any(bool(out) for out in mode.out_of_range)
