"""A window without a run around it: updates against TensorFlow's own gradients, and the state after commits."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.tracing import for_xla
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.sgd import SGD
from tests.engine.small import CLASSES, examples, lenet, resnet20

SHAPE, RATE, UPDATES = (8, 8, 1), 0.1, 2


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (lenet(), {}),
        (resnet20(units=(1, 1)), {"sum_dtype": tf.float64}),
        (lenet(), {"clip_norm": 0.5}),
        (lenet(), {"clip_norm": 1e3}),
    ],
    ids=["no options", "sums in float64", "clipped", "not clipped"],
)
def test_updates_are_those_of_tensorflows_own_gradient(config, options):
    window = window_of(config, **options)
    step, model = Step(window), window.model
    for seed in range(UPDATES):
        batch = examples(6, SHAPE, seed)
        before, gradients = weights_and_gradients(model, batch)
        norm = np.sqrt(sum(np.sum(np.square(gradient, dtype=np.float64)) for gradient in gradients))
        rate = RATE * min(1.0, options.get("clip_norm", np.inf) / norm)
        step.accumulate(iter(tf.data.Dataset.from_tensors(batch)))
        step.commit()
        for old, gradient, new in zip(before, gradients, model.trainable_variables, strict=True):
            np.testing.assert_allclose(new, old - rate * gradient, rtol=1e-5, atol=1e-7)
    assert (int(window.step), window.step.dtype, window.seed) == (UPDATES, tf.int64, 0)


def weights_and_gradients(model, batch):
    weights = list(model.trainable_variables)
    with tf.GradientTape() as tape:
        logits = model(batch["inputs"], Mode(training=True))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits))
    return [weight.numpy() for weight in weights], tape.gradient(loss, weights)


def window_of(config, optimizer=None, **options):
    return Window(build_model(config, ModelSpec(SHAPE, CLASSES, seed=1)), optimizer or SGD(RATE), **options)


def test_a_commit_for_xla_clears_the_window():
    window = window_of(lenet())
    window.accumulate(examples(6, SHAPE))
    assert all(np.any(buffer) for buffer in window.gradients)
    with for_xla():
        tf.function(window.commit, autograph=False)()
    assert not any(np.any(buffer) for buffer in window.buffers)


def test_a_commit_moves_the_statistics_of_norms_by_the_tenth_that_their_momentum_leaves():
    window = window_of(resnet20(units=(1, 1)))
    batch, mode = examples(6, SHAPE), Mode(training=True, recording=True)
    window.model(batch["inputs"], mode)
    assert len(window.model.norms) == len(mode.statistics) > 0
    window.accumulate(batch)
    window.commit()
    for norm, (mean, variance) in mode.statistics.items():
        np.testing.assert_allclose(norm.moving_mean, 0.1 * mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(norm.moving_variance, 0.9 + 0.1 * variance, rtol=1e-4)


class Skipping(SGD):
    """Note for which variables it gets a gradient."""

    skips_missing = True

    def apply(self, gradients, rate, step, scale):
        self.got = [gradient is not None for gradient in gradients]
        super().apply([tf.zeros([]) if each is None else each for each in gradients], rate, step, scale)


def test_the_first_call_may_be_one_of_several_updates():
    """The commit is traced after the micro-step, which finds the variables on which the loss depends."""
    window = window_of(lenet(), Skipping(RATE))
    step, batch = Step(window), examples(6, SHAPE)
    with pytest.raises(RuntimeError, match="trace a micro-step before the commit"):
        step.commit(partial=True)
    step.drop()
    update = step.updates(iter(tf.data.Dataset.from_tensors(batch).repeat(2)), 2)
    assert int(update["step"]) == 2
    assert window.optimizer.got == [True] * len(window.variables_)
    assert step.programs.compiled_micro_steps.experimental_get_tracing_count() == 1


def test_an_update_says_whether_it_was_asked_to_stop():
    window = window_of(lenet())
    for asked in (False, True):
        if asked:
            window.ask_to_stop(tf.distribute.get_strategy())
        window.accumulate(examples(6, SHAPE))
        assert bool(window.commit()["stop"]) is asked
