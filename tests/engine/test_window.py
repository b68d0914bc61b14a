"""The window's contract: accum.steps changes memory, never what is learned; an update is a transaction."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine import window as window_module
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.programs import TensorFlowPrograms
from accumtrain.engine.step import Step
from accumtrain.optim.config import AdafactorConfig, AdamConfig, KerasOptimConfig, SgdConfig
from tests.engine.small import assert_same_bits, distance, examples, lenet, resnet20, revnet38, train, window_for

SHAPE = (8, 8, 1)
OPTIMIZERS = {
    "sgd": SgdConfig(lr=0.01, weight_decay=1e-4, momentum=0.9, nesterov=True),
    "adam": AdamConfig(lr=1e-3, weight_decay=0.0, epsilon=1e-7),
    "adafactor": AdafactorConfig(lr=None, weight_decay=0.0, momentum=0.0),
    "nadam": KerasOptimConfig(lr=1e-3, weight_decay=0.0, name="Nadam"),
}
SGD = OPTIMIZERS["sgd"]


def weights(window):
    return [variable.numpy() for variable in window.variables_]


def everything(window):
    """Return all that a commit may change, moving averages included."""
    averages = [] if window.ema is None else window.ema.averages
    kept = [*window.model.variables, *window.optimizer.state, window.step, *averages]
    return [variable.numpy() for variable in kept]


def relative_difference(config, optim, precision, micro_steps, updates=5, batch=32):
    batches = [examples(batch, SHAPE, seed) for seed in range(updates)]
    whole, split = (
        window_for(config, optim, SHAPE, precision=precision, micro_steps=steps) for steps in (1, micro_steps)
    )
    start = weights(whole)
    train(whole, batches, 1)
    train(split, batches, micro_steps)
    return distance(weights(split), weights(whole)) / distance(weights(whole), start)


ACCUMULATED = {"revnet38": revnet38("group"), "resnet20": resnet20("group")}
SHALLOW = {"revnet18": revnet38("group", units=(2, 2)), "resnet10": resnet20("group", units=(2, 2))}


@pytest.mark.parametrize(
    ("model", "optim"), [pytest.param("revnet18", "adafactor", marks=pytest.mark.slow), ("resnet10", "sgd")]
)
def test_accumulation_equals_the_whole_batch(model, optim):
    assert relative_difference(SHALLOW[model], OPTIMIZERS[optim], "float64", 4) <= 1e-12


def test_accumulation_leaves_out_the_same_examples_as_the_whole_batch():
    dropping = dataclasses.replace(resnet20("group", units=(1, 1)), drop_path=0.5)
    assert relative_difference(dropping, SGD, "float64", 4, updates=3) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("model", SHALLOW)
def test_accumulation_in_float32_differs_by_rounding(model):
    """One update: after it a rounding can move an activation across a ReLU's kink, which float64 almost never does."""
    assert relative_difference(SHALLOW[model], SGD, "float32", 4, updates=1) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("micro_steps", [2, 4, 8])
@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("model", ACCUMULATED)
def test_accumulation_equals_the_whole_batch_for_every_optimizer_and_split(model, optim, micro_steps):
    assert relative_difference(ACCUMULATED[model], OPTIMIZERS[optim], "float64", micro_steps) <= 1e-12


def test_moving_statistics_are_those_of_the_whole_window():
    """Against the concatenated window in float64, through the first normalisation, whose input is known."""
    window = window_for(resnet20(units=(1, 1)), SGD, (8, 8, 3))
    batch = examples(32, (8, 8, 3))
    batch["inputs"] = (
        batch["inputs"] * tf.linspace(0.5, 3.0, 32)[:, None, None, None] + 2.0
    )  # micro-batches that differ
    stem = window.model.segments[0].layers[0]
    norm_, conv = stem.norm, stem.conv
    expected = tf.nn.conv2d(tf.cast(batch["inputs"], tf.float64), tf.cast(conv.kernel, tf.float64), 1, "SAME").numpy()
    train(window, [batch], 4)
    mean, variance = expected.mean((0, 1, 2)), expected.var((0, 1, 2))
    share = 1.0 - norm_.momentum
    np.testing.assert_allclose(norm_.moving_mean, share * mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(norm_.moving_variance, (1 - share) + share * variance, rtol=1e-6)


def test_nothing_but_buffers_changes_during_a_window():
    window = window_for(revnet38(units=(1, 1)), SGD, SHAPE)
    before = everything(window)
    iterator = iter(tf.data.Dataset.from_tensors(examples(8, SHAPE)).repeat())
    step = Step(window)
    step.accumulate(iterator, 3)
    assert_same_bits(before, everything(window))
    assert float(window.examples) == 24.0
    update = step.commit(partial=True)
    assert int(update["step"]) == int(window.step) == 1
    assert float(update["examples"]) == 24.0
    assert not all(np.array_equal(a, b) for a, b in zip(before, everything(window), strict=True))
    assert all(not np.any(buffer.numpy()) for buffer in window.buffers), "the commit clears the window"


@pytest.mark.slow
def test_a_commit_holds_no_more_functions_for_a_deeper_model():
    def functions(units):
        window = window_for(revnet38(units=units), OPTIMIZERS["adafactor"], SHAPE)
        commit = TensorFlowPrograms(window).compiled_commit.get_concrete_function()
        return len(commit.graph.as_graph_def().library.function)

    assert functions((2, 2)) == functions((3, 3)) < 30


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_window_that_is_not_finite_changes_nothing(bad):
    small = resnet20(units=(1, 1))
    window = window_for(small, OPTIMIZERS["adam"], SHAPE, ema=lambda weights: MovingAverage(weights, 0.9))
    train(window, [examples(8, SHAPE)], 2)
    before = everything(window)
    batch = examples(8, SHAPE, 1)
    batch["inputs"] = tf.tensor_scatter_nd_update(batch["inputs"], [[7, 0, 0, 0]], [bad])  # in the last micro-batch
    (update,) = train(window, [batch], 4)
    assert (update["finite"], update["step"]) == (False, 1)
    assert_same_bits(before, everything(window))
    (update,) = train(window, [examples(8, SHAPE)], 2)
    assert (update["finite"], update["step"]) == (True, 2), "the window after it is clean"


def test_ragged_micro_batches_and_weights_give_the_mean_over_examples():
    """5 + 3 examples, and 8 rows of which 3 weigh nothing, are the mean of the examples that count."""
    data = examples(8, SHAPE)
    whole, ragged, padded = (window_for(lenet(), SGD, SHAPE, precision="float64") for _ in range(3))
    train(whole, [data], 1)
    step = Step(ragged)
    pieces = [{k: v[:5] for k, v in data.items()}, {k: v[5:] for k, v in data.items()}]
    for piece in pieces:
        step.accumulate(iter(tf.data.Dataset.from_tensors(piece)), 1)
    step.commit(partial=True)
    assert distance(weights(whole), weights(ragged)) < 1e-14

    five = window_for(lenet(), SGD, SHAPE, precision="float64")
    train(five, [pieces[0]], 1)
    masked = data | {"weight": tf.constant([1.0] * 5 + [0.0] * 3)}
    (update,) = train(padded, [masked], 2)
    assert update["examples"] == 5
    assert distance(weights(five), weights(padded)) < 1e-14


def test_means_are_by_weight_and_statistics_of_batch_norm_by_example():
    """Examples of the weights 1 to 4: the mean gradient is weighted, and moving statistics are not."""
    data = examples(8, SHAPE)
    weight = tf.constant([1.0, 2.0, 3.0, 4.0, 1.0, 1.0, 2.0, 3.0])
    plain, weighted = (window_for(resnet20(units=(1, 1)), SGD, SHAPE, precision="float64") for _ in range(2))
    train(plain, [data], 2)
    (update,) = train(weighted, [data | {"weight": weight}], 2)
    assert (update["weight"], update["examples"]) == (17.0, 8.0)
    for one, other in zip(plain.statistics.variables_, weighted.statistics.variables_, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    parts = [window_for(lenet(), SGD, SHAPE, precision="float64") for _ in range(2)]
    repeated = tf.nest.map_structure(lambda tensor: tf.repeat(tensor, tf.cast(weight, tf.int32), 0), dict(data))
    train(parts[0], [repeated], 1)
    (update,) = train(parts[1], [data | {"weight": weight}], 4)
    assert distance(weights(parts[0]), weights(parts[1])) < 1e-14


def test_every_micro_batch_of_every_replica_has_a_place_of_its_own(monkeypatch):
    """Random layers draw by it; two that share one would draw alike."""
    window = window_for(lenet(), SGD, SHAPE, micro_steps=2)
    seen = []
    monkeypatch.setattr(window_module, "micro_mode", lambda _, __, *at, **___: seen.append(at[:2]))
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: SimpleNamespace(num_replicas_in_sync=3))
    for micro_step in range(2):
        window.micro_step.assign(micro_step)
        for replica in range(3):
            context = SimpleNamespace(replica_id_in_sync_group=replica)
            monkeypatch.setattr(tf.distribute, "get_replica_context", lambda context=context: context)
            window._mode({})
    assert [(int(place), parts) for place, parts in seen] == [(place, 6) for place in range(6)]
