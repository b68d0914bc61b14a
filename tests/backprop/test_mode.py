"""The random numbers of a micro-batch depend on run, update and index in the window alone."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import micro_mode

EXAMPLES, NUMBER = 8, 5


def mode_of(seed=3, step=2, index=0, parts=1):
    batch = {"targets": tf.zeros([EXAMPLES // parts, 1], tf.int32)}
    return micro_mode(seed, tf.constant(step), tf.constant(index), parts, batch)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_an_example_has_the_same_number_however_its_window_is_split(parts):
    whole = mode_of().draws(NUMBER)
    assert whole.shape == [EXAMPLES]
    split = [mode_of(index=index, parts=parts).draws(NUMBER) for index in range(parts)]
    np.testing.assert_array_equal(tf.concat(split, 0), whole)
    assert not np.array_equal(whole, mode_of().draws(NUMBER + 1)), "each number is another draw"
    more = mode_of(index=1).draws(NUMBER)
    assert not np.array_equal(whole, more), "more micro-batches than were declared do not repeat them"


def test_the_number_of_examples_may_be_known_later_only():
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 1], tf.int32)])
    def draws(label):
        return micro_mode(3, tf.constant(2), tf.constant(0), 1, {"targets": label}).draws(NUMBER)

    np.testing.assert_array_equal(draws(tf.zeros([EXAMPLES, 1], tf.int32)), mode_of().draws(NUMBER))


def test_another_run_update_or_place_draws_others():
    others = [mode_of(), mode_of(seed=4), mode_of(step=3), mode_of(index=1, parts=2)]
    assert all(mode.training and mode.recording for mode in others)
    for one, other in itertools.combinations(others, 2):
        assert not np.array_equal(one.seed, other.seed)
        half = EXAMPLES // 2
        assert not np.array_equal(one.draws(NUMBER)[:half], other.draws(NUMBER)[:half])
