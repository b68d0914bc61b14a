"""Updates of a loss of the whole batch: those of one micro-batch, with the draws and statistics of each."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode, micro_mode
from accumtrain.devices.config import MirroredConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.losses import LossScale, WholeBatch
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.config import SgdConfig
from accumtrain.train.build import build_optimizer
from tests.engine.small import CLASSES, assert_same_bits, distance, examples, lenet, resnet20, revnet38
from tests.programs import output_of

SHAPE, SGD = (8, 8, 1), SgdConfig(lr=0.01, weight_decay=1e-4, momentum=0.9, nesterov=True)
SEED = 11


def supcon(labels, logits):
    """Khosla et al. 2020, arXiv:2004.11362."""
    z = tf.math.l2_normalize(logits, -1)
    similar = tf.matmul(z, z, transpose_b=True) / 0.1 - 1e9 * tf.eye(tf.shape(z)[0], dtype=z.dtype)
    pairs = tf.cast(labels[:, None] == labels[None], z.dtype) - tf.eye(tf.shape(z)[0], dtype=z.dtype)
    return -tf.reduce_sum(pairs * tf.nn.log_softmax(similar)) / tf.reduce_sum(pairs)


def window_of(config, *, precision="float64", micro_steps=4, loss_scale=None, optim=SGD, metrics=None):
    model = build_model(config, ModelSpec(SHAPE, CLASSES, precision, seed=3))
    return Window(
        model,
        build_optimizer(optim),
        loss=WholeBatch(supcon),
        loss_scale=loss_scale,
        micro_steps=micro_steps,
        metrics=metrics,
        seed=SEED,
    )


def update(window, given, micro_batch=8, *, strategy=None, partial=False, eager=False, xla=False):
    """Make an update of each batch. Return the scalars of the last."""
    strategy, step = strategy or tf.distribute.get_strategy(), Step(window, eager=eager, xla=xla)
    for batch in given:
        data = tf.data.Dataset.from_tensor_slices(batch).batch(micro_batch, drop_remainder=True)
        iterator, count = iter(strategy.experimental_distribute_dataset(data)), batch["targets"].shape[0] // micro_batch
        step.accumulate(iterator, count)
        scalars = step.commit(partial=partial)
    return {name: value.numpy().item() for name, value in scalars.items()}


def weights(window):
    return [variable.numpy() for variable in window.variables_]


def batches(count=5):
    return [examples(32, SHAPE, seed) for seed in range(count)]


@pytest.mark.parametrize("config", [lenet(), pytest.param(revnet38("group", units=(1, 1)), marks=pytest.mark.slow)])
def test_the_update_is_that_of_one_micro_batch(config):
    split, whole = window_of(config), window_of(config, micro_steps=1)
    start = weights(whole)
    found, expected = update(split, batches()), update(whole, batches(), 32)
    assert distance(weights(split), weights(whole)) <= 1e-12 * distance(weights(whole), start)
    assert {name: found[name] for name in ("loss", "accuracy", "grad_norm")} == pytest.approx(
        {name: expected[name] for name in ("loss", "accuracy", "grad_norm")}, rel=1e-12
    )


@pytest.mark.xla
def test_xla_compiles_the_model_and_not_the_loss():
    """Whose examples of weight 0 would have a number that XLA can't know."""
    (batch,) = batches(1)
    some = {**batch, "weight": tf.constant([1.0, 0.0] * 16)}
    compiled, plain = window_of(lenet()), window_of(lenet())
    found, expected = update(compiled, [some] * 2, xla=True), update(plain, [some] * 2)
    assert distance(weights(compiled), weights(plain)) < 1e-12
    assert found == pytest.approx(expected, rel=1e-12)


def test_draws_and_statistics_are_those_of_each_micro_batch():
    """Against one tape over all micro-batches, with drop path and batch norm."""
    (batch,) = batches(1)
    config = dataclasses.replace(resnet20(units=(1, 1)), drop_path=0.5)
    window = window_of(config, optim=SgdConfig(lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False))
    parts = [{name: tensor[place : place + 8] for name, tensor in batch.items()} for place in range(0, 32, 8)]
    modes = [micro_mode(SEED, 0, tf.constant(place), 4, part) for place, part in enumerate(parts)]
    assert isinstance(modes[0], Mode)
    with tf.GradientTape() as tape:
        outputs = [window.model(part["inputs"], mode) for part, mode in zip(parts, modes, strict=True)]
        loss = supcon(batch["targets"], tf.concat(outputs, 0))
    gradients = tape.gradient(loss, window.variables_)
    start = weights(window)
    scalars = update(window, batches(1))
    assert scalars["loss"] == pytest.approx(loss.numpy(), rel=1e-12)
    for before, after, gradient in zip(start, weights(window), gradients, strict=True):
        np.testing.assert_allclose(before - after, gradient, rtol=1e-9, atol=1e-13)
    moved = [norm.moving_mean.numpy().any() for norm in window.model.norms]
    assert all(moved)


@pytest.mark.slow
def test_reversed_and_stored_have_the_same_bits():
    windows = [window_of(revnet38(memory=memory, units=(1, 1)), precision="float32") for memory in ("reverse", "store")]
    for window in windows:
        update(window, batches())
    assert_same_bits(*map(weights, windows))


def test_examples_without_weight_are_left_out():
    (batch,) = batches(1)
    some = {**batch, "weight": tf.constant([1.0, 0.0] * 16)}
    rest = {name: tensor[::2] for name, tensor in batch.items()}
    split, whole = window_of(lenet()), window_of(lenet(), micro_steps=1)
    found, expected = update(split, [some]), update(whole, [rest], 16)
    assert distance(weights(split), weights(whole)) < 1e-12
    assert (found["examples"], found["loss"]) == (16, pytest.approx(expected["loss"], rel=1e-12))


def test_a_loss_scale_does_not_change_the_update():
    scaled, plain = (
        window_of(lenet(), precision="float32", loss_scale=scale) for scale in (LossScale(1024.0, 100), None)
    )
    for window in (scaled, plain):
        update(window, batches(1))
    assert_same_bits(weights(scaled), weights(plain))


def test_a_part_of_a_window_may_be_committed_and_a_window_dropped():
    (batch,) = batches(1)
    some = {name: tensor[:16] for name, tensor in batch.items()}
    split, whole = window_of(lenet()), window_of(lenet(), micro_steps=1)
    step = Step(split)
    data = tf.data.Dataset.from_tensor_slices(some).batch(8, drop_remainder=True)
    step.accumulate(iter(data), 1)
    step.drop()
    step.accumulate(iter(data), 2)
    step.commit(partial=True)
    update(whole, [some], 16)
    assert distance(weights(split), weights(whole)) < 1e-12


def test_several_updates_are_not_made_in_one_call():
    step = Step(window_of(lenet()))
    assert not step.makes_updates_together
    with pytest.raises(ValueError, match="a loss of the whole batch make one update at a time"):
        step.updates(iter([]), 2)


def test_both_passes_run_as_python_where_that_is_asked_for(monkeypatch):
    plain, eager = window_of(lenet()), window_of(lenet())
    update(plain, batches(1))
    seen, first = [], eager.model.segments[0].layers[0]
    forward = type(first).__call__

    def noted(layer, *given):
        if layer is first:
            seen.append(tf.executing_eagerly())
        return forward(layer, *given)

    monkeypatch.setattr(type(first), "__call__", noted)
    update(eager, batches(1), eager=True)
    assert seen == [False, *[True] * 8], "a trace that looks for random numbers, and four micro-batches twice"
    assert distance(weights(eager), weights(plain)) < 1e-12


def test_random_numbers_that_would_be_drawn_anew_are_refused():
    window = window_of(lenet())
    layer = window.model.segments[0].layers[0]
    window.model.segments[0].layers[0] = lambda x, mode: layer(x + tf.random.uniform([], dtype=x.dtype), mode)
    with pytest.raises(ConfigError, match=r"draws random numbers by RandomUniform, and the second pass"):
        update(window, batches(1))


def test_a_loss_of_one_value_for_each_example_is_refused():
    window = window_of(lenet())
    window.loss_function = WholeBatch(lambda labels, logits: logits[:, 0])
    with pytest.raises(ConfigError, match=r"shape \(.*,\); a loss of the whole batch returns one number"):
        update(window, batches(1))


@pytest.mark.slow
def test_replicas_compare_the_examples_of_each_other():
    """In a process of its own: logical devices have to be set before TensorFlow runs."""
    output_of("-c", "from tests.engine.test_whole_batch import two_replicas; two_replicas()")


def two_replicas():
    strategy = resolve_devices(MirroredConfig(virtual=2)).strategy
    with strategy.scope():
        split = window_of(lenet(), micro_steps=2)
        found = update(split, batches(), 16, strategy=strategy)
    whole = window_of(lenet(), micro_steps=1)
    start = weights(whole)
    expected = update(whole, batches(), 32)
    assert distance(weights(split), weights(whole)) <= 1e-12 * distance(weights(whole), start)
    assert abs(found["loss"] / expected["loss"] - 1) < 1e-12
