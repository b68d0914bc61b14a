"""The dynamic loss scale of float16: a window that overflows changes nothing but the scale."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine.losses import LossScale
from accumtrain.optim.config import AdamConfig
from tests.engine.small import assert_same_bits, examples, resnet20, revnet38, train, window_for

SHAPE = (8, 8, 1)
ADAM = AdamConfig(lr=1e-3, weight_decay=0.0, epsilon=1e-7)


def window_with(scale, model=None, growth_every=1000, precision="float16"):
    window = window_for(model or resnet20("group", units=(1, 1)), ADAM, SHAPE, precision=precision)
    window.loss_scale = LossScale(scale, growth_every)
    return window


def state(window):
    kept = [*window.model.variables, *window.optimizer.state, window.step]
    return [variable.numpy() for variable in kept]


def overflowing(batch, row):
    """The batch with one image that float16 can't hold."""
    rows = tf.range(batch["targets"].shape[0])[:, None, None, None]
    return {**batch, "inputs": tf.where(rows == row, 1e6, batch["inputs"])}


def test_an_overflow_in_one_micro_batch_skips_the_window_and_halves_the_scale():
    window = window_with(1024.0)
    train(window, [examples(16, SHAPE)], 4)
    before = state(window)
    (update,) = train(window, [overflowing(examples(16, SHAPE, 1), row=5)], 4)
    assert not update["finite"]
    assert (update["loss_scale"], update["skipped"], update["step"]) == (1024.0, 1, 1)
    assert_same_bits(before, state(window))
    assert window.loss_scale.value.numpy() == 512.0
    assert all(not np.any(buffer.numpy()) for buffer in window.buffers), "nothing of it reaches the next window"
    (update,) = train(window, [examples(16, SHAPE, 2)], 4)
    assert (update["finite"], update["loss_scale"], update["skipped"], update["step"]) == (True, 512.0, 1, 2)


def test_a_window_without_examples_is_counted_and_is_no_overflow():
    window = window_with(1024.0, growth_every=2)
    batches = [examples(8, SHAPE, seed) for seed in range(2)]
    empty = {**batches[0], "weight": tf.zeros([8])}
    updates = train(window, [batches[0], empty, batches[1]], 1)
    told = [(update["finite"], update["loss_scale"], update["skipped"]) for update in updates]
    assert told == [(True, 1024.0, 0), (False, 1024.0, 1), (True, 1024.0, 1)]
    assert window.loss_scale.value.numpy() == 2048.0, "it does not end the updates in a row either"


def test_the_scale_grows_after_updates_in_a_row():
    window = window_with(4.0, growth_every=2)
    batches = [examples(8, SHAPE, seed) for seed in range(5)]
    updates = train(window, [*batches[:3], overflowing(batches[3], 0), *batches[3:]], 1)
    assert [update["loss_scale"] for update in updates] == [4.0, 4.0, 8.0, 8.0, 4.0, 4.0]
    assert window.loss_scale.value.numpy() == 8.0


def test_the_scale_stays_between_one_and_the_largest_number():
    scale = LossScale(1.0, 1)
    scale.after_skip(tf.constant(1.0))
    assert (scale.value.numpy(), scale.skipped.numpy()) == (1.0, 1)
    scale.value.assign(2.0**127)
    scale.after_update()
    assert scale.value.numpy() == 2.0**127


@pytest.mark.slow
def test_a_power_of_two_as_scale_changes_no_bit_where_nothing_overflows():
    """In float32, where nothing is lost by it either."""
    plain, scaled = window_for(resnet20("group", units=(1, 1)), ADAM, SHAPE), window_with(1024.0, precision="float32")
    batches = [examples(16, SHAPE, seed) for seed in range(3)]
    losses = [[update["loss"] for update in train(window, batches, 2)] for window in (plain, scaled)]
    assert losses[0] == losses[1]
    assert_same_bits(state(plain), state(scaled))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_reversed_equals_stored_in_float16(norm):
    updated = []
    for memory in ("store", "reverse"):
        window = window_with(256.0, revnet38(norm, memory, units=(2, 2)))
        updates = train(window, [examples(8, SHAPE, seed) for seed in range(2)], 2)
        assert all(update["finite"] for update in updates)
        updated.append(state(window))
    assert_same_bits(*updated)
