"""The window's contract: accum.steps changes memory, never what is learned; an update is a transaction."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine import window as window_module
from accumtrain.engine.ema import MovingAverage
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
    batch["image"] = batch["image"] * tf.linspace(0.5, 3.0, 32)[:, None, None, None] + 2.0  # micro-batches that differ
    stem = window.model.segments[0].layers[0]
    norm_, conv = stem.norm, stem.conv
    expected = tf.nn.conv2d(tf.cast(batch["image"], tf.float64), tf.cast(conv.kernel, tf.float64), 1, "SAME").numpy()
    train(window, [batch], 4)
    mean, variance = expected.mean((0, 1, 2)), expected.var((0, 1, 2))
    share = 1.0 - norm_.momentum
    np.testing.assert_allclose(norm_.moving_mean, share * mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(norm_.moving_variance, (1 - share) + share * variance, rtol=1e-6)


def test_moving_statistics_count_the_variance_between_micro_batches():
    """Two constant micro-batches have no variance within; all of the window's is between them."""
    window = window_for(resnet20(units=(1, 1)), SGD, (8, 8, 3))
    batch = examples(8, (8, 8, 3))
    batch["image"] = tf.repeat(tf.constant([0.0, 4.0]), 4)[:, None, None, None] * tf.ones([8, 8, 8, 3])
    conv = window.model.segments[0].layers[0].conv
    features = tf.nn.conv2d(batch["image"], conv.kernel, 1, "SAME").numpy().astype(np.float64)
    train(window, [batch], 2)
    norm_ = window.model.segments[0].layers[0].norm
    share = 1.0 - norm_.momentum
    np.testing.assert_allclose(norm_.moving_variance, (1 - share) + share * features.var((0, 1, 2)), rtol=1e-5)


def test_nothing_but_buffers_changes_during_a_window():
    window = window_for(revnet38(units=(1, 1)), SGD, SHAPE)
    before = everything(window)
    iterator = iter(tf.data.Dataset.from_tensors(examples(8, SHAPE)).repeat())
    step = Step(window, tf.distribute.get_strategy())
    step.accumulate(iterator, 3)
    assert_same_bits(before, everything(window))
    assert float(window.examples) == 24.0
    update = step.commit(partial=True)
    assert int(update["step"]) == int(window.step) == 1
    assert float(update["examples"]) == 24.0
    assert not all(np.array_equal(a, b) for a, b in zip(before, everything(window), strict=True))
    assert all(not np.any(buffer.numpy()) for buffer in window.buffers), "the commit clears the window"


def test_a_commit_holds_no_more_functions_for_a_deeper_model():
    def functions(units):
        window = window_for(revnet38(units=units), OPTIMIZERS["adafactor"], SHAPE)
        commit = Step(window, tf.distribute.get_strategy()).compiled_commit.get_concrete_function()
        return len(commit.graph.as_graph_def().library.function)

    assert functions((2, 2)) == functions((3, 3)) < 30


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_window_that_is_not_finite_changes_nothing(bad):
    small = resnet20(units=(1, 1))
    window = window_for(small, OPTIMIZERS["adam"], SHAPE, ema=lambda weights: MovingAverage(weights, 0.9))
    train(window, [examples(8, SHAPE)], 2)
    before = everything(window)
    batch = examples(8, SHAPE, 1)
    batch["image"] = tf.tensor_scatter_nd_update(batch["image"], [[7, 0, 0, 0]], [bad])  # in the last micro-batch
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
    step = Step(ragged, tf.distribute.get_strategy())
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


def test_clipping_acts_on_the_mean_gradient():
    batch = examples(16, SHAPE)
    plain = SgdConfig(lr=1.0, weight_decay=0.0, momentum=0.0)
    for micro_steps in (1, 4):
        window = window_for(lenet(), plain, SHAPE, precision="float64", clip_norm=0.05)
        start = weights(window)
        (update,) = train(window, [batch], micro_steps)
        assert update["grad_norm"] > 0.05
        assert distance(weights(window), start) == pytest.approx(0.05, rel=1e-9)


def test_adaptive_clipping_bounds_each_unit_by_its_weights():
    optim = SgdConfig(lr=1.0, momentum=0.0, weight_decay=0.0)
    window = window_for(lenet(), optim, SHAPE, micro_steps=2, adaptive_clip=1e-4)
    before = weights(window)
    train(window, [examples(8, SHAPE)], 2)
    clipped = 0
    for old, new in zip(before, weights(window), strict=True):
        axes = tuple(range(old.ndim - 1)) if old.ndim > 1 else None
        moved = np.sqrt(np.square(new - old, dtype=np.float64).sum(axes))
        limit = 1e-4 * np.maximum(np.sqrt(np.square(old, dtype=np.float64).sum(axes)), 1e-3)
        assert (moved <= 1.01 * limit + 1e-7).all()
        clipped += int(np.sum(moved > 0.99 * limit))
    assert clipped > 10


@pytest.mark.parametrize("split", [1, 2, 4])
def test_a_sum_is_the_mean_times_the_number_of_micro_batches(split):
    config, batches = lenet(), [examples(8, SHAPE)]
    slow, fast = (SgdConfig(lr=rate, momentum=0.0, weight_decay=0.0) for rate in (0.01, 0.01 * split))
    by_sum = window_for(config, slow, SHAPE, micro_steps=split, reduction="sum")
    by_mean = window_for(config, fast, SHAPE, micro_steps=split)
    (summed,), (mean,) = train(by_sum, batches, split), train(by_mean, batches, split)
    for a, b in zip(weights(by_sum), weights(by_mean), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert summed["grad_norm"] == pytest.approx(split * mean["grad_norm"], rel=1e-6)
    assert summed["loss"] == mean["loss"]


def test_schedule_and_average_count_updates():
    seen = []
    window = window_for(
        lenet(),
        SGD,
        SHAPE,
        schedule=lambda step: 1.0 / (1.0 + tf.cast(step, tf.float32)),
        ema=lambda weights: MovingAverage(weights, 0.5),
    )
    averages = weights(window)
    for seed in range(3):
        seen += train(window, [examples(8, SHAPE, seed)], 4)
        decay = np.float32(min(0.5, (2 + seed) / (11 + seed)))
        averages = [a + (w - a) * (1 - decay) for a, w in zip(averages, weights(window), strict=True)]
    assert [update["learning_rate"] for update in seen] == pytest.approx([0.01, 0.005, 0.01 / 3])
    for average, expected in zip(window.ema.averages, averages, strict=True):
        np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-7)


def test_every_micro_batch_of_every_replica_has_a_place_of_its_own(monkeypatch):
    """Random layers draw by it; two that share one would draw alike."""
    window = window_for(lenet(), SGD, SHAPE, micro_steps=2)
    seen = []
    monkeypatch.setattr(window_module, "micro_mode", lambda seed, step, place, parts, _: seen.append((place, parts)))
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: SimpleNamespace(num_replicas_in_sync=3))
    for micro_step in range(2):
        window.micro_step.assign(micro_step)
        for replica in range(3):
            context = SimpleNamespace(replica_id_in_sync_group=replica)
            monkeypatch.setattr(tf.distribute, "get_replica_context", lambda context=context: context)
            window._mode({})
    assert [(int(place), parts) for place, parts in seen] == [(place, 6) for place in range(6)]
