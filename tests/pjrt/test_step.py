"""The programs of JAX make the updates of TensorFlow's: the same windows, by both, from the same batches."""

from dataclasses import replace
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.source import ArraySplit, Dataset
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.losses import LossScale, cross_entropy
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.models.config import KerasModelConfig
from accumtrain.models.keras.model import KerasModel
from accumtrain.optim.config import AdafactorConfig, AdamConfig, AdamWConfig, KerasOptimConfig, SgdConfig
from accumtrain.train.build import build_optimizer
from accumtrain.train.evaluator import Evaluator
from tests.engine.small import (
    CLASSES,
    all_variables,
    assert_same_bits,
    distance,
    examples,
    lenet,
    norm,
    resnet20,
    revnet38,
    window_for,
)

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.xla

SHAPE = (8, 8, 3)
OPTIMIZERS = [
    AdamConfig(lr=0.01),
    AdamWConfig(lr=0.01, weight_decay=0.1),
    SgdConfig(lr=0.05, momentum=0.9),
    AdafactorConfig(lr=0.01),
    KerasOptimConfig(name="RMSprop", lr=0.01),
]
average = partial(MovingAverage, decay=0.9)


@pytest.fixture(scope="module", autouse=True)
def devices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        jax.config.update("jax_enable_x64", True)
        yield jax.devices("cpu")[:1]


@pytest.fixture
def runtime(devices):
    from accumtrain.pjrt.runtime import JaxRuntime

    return JaxRuntime(devices)


def batches_of(size=8, count=64, **more):
    """An iterator that does not end, of batches that repeat after `count` examples."""
    data = tf.data.Dataset.from_tensor_slices({**examples(count, SHAPE), **more})
    return iter(data.batch(size, drop_remainder=True).repeat())


def float64(config, optim=OPTIMIZERS[0], **more):
    return window_for(config, optim, SHAPE, precision="float64", **more)


def updates(step, window, batches, count):
    made = []
    for _ in range(count):
        step.accumulate(batches, window.micro_steps)
        made.append({name: np.asarray(value).item() for name, value in step.commit().items()})
    return made


def variables_of(window):
    """The values of the state, of which the sums of a window are no part."""
    return [each.numpy() for each in all_variables(window) if not any(each is buffer for buffer in window.buffers)]


def parts_of(window):
    """The values of weights, and of all else, in float64."""
    others = [each for each in all_variables(window) if not any(each is weight for weight in window.variables_)]
    return [[each.numpy().astype(np.float64) for each in part] for part in (window.variables_, others)]


def assert_same_updates(runtime, make_window, make_batches=batches_of, count=20, tolerance=1e-12, xla=False):
    """The variables after the last update, and the scalars of each, are those of Step. Return these."""
    expected_window, window = make_window(), make_window()
    before = [variable.numpy() for variable in window.variables_]
    expected = updates(Step(expected_window, xla=xla), expected_window, make_batches(), count)
    found = updates(runtime.build_step(window), window, make_batches(), count)
    for one, other in zip(expected, found, strict=True):
        one.pop("compared"), other.pop("compared")  # a reversal is not looked at under XLA
        assert other == pytest.approx(one, rel=1e3 * tolerance, nan_ok=True)
        floats = ("loss", "accuracy", "learning_rate", "grad_norm", "loss_scale")
        exact = [name for name in one if name not in floats]
        assert {name: other[name] for name in exact} == {name: one[name] for name in exact}
    with runtime.reading(), runtime.reading(window.buffers):
        assert distance([each.numpy() for each in window.variables_], before) > 0
        for one, other in zip(parts_of(expected_window), parts_of(window), strict=True):
            assert distance(one, other) <= tolerance * norm(one)
    return found


# ---- models, optimizers, numbers of micro-steps ----------------------------------------------------------------------


SLOW = ("adamw", "sgd", "keras")  # as adam and adafactor run every day


@pytest.mark.parametrize(
    "optim",
    [pytest.param(optim, marks=pytest.mark.slow if optim.kind in SLOW else ()) for optim in OPTIMIZERS],
    ids=lambda optim: getattr(optim, "name", optim.kind),
)
def test_every_optimizer(runtime, optim):
    assert_same_updates(runtime, lambda: float64(lenet(), optim, micro_steps=2))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_any_number_of_micro_steps(runtime, steps):
    assert_same_updates(runtime, lambda: float64(lenet(), micro_steps=steps), lambda: batches_of(16 // steps))


MODELS = [
    pytest.param(resnet20(units=(1, 1)), marks=pytest.mark.slow),
    pytest.param(resnet20(memory="recompute", units=(1, 1)), marks=pytest.mark.slow),
    pytest.param(revnet38(units=(1,)), marks=pytest.mark.slow),
    pytest.param(resnet20(), marks=pytest.mark.slow),
    pytest.param(revnet38(), marks=pytest.mark.slow),
    pytest.param(revnet38("group", memory="store"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("config", MODELS, ids=lambda config: f"{config.kind}-{config.memory}-{len(config.units)}")
def test_every_kind_of_model(runtime, config):
    assert_same_updates(runtime, lambda: float64(config, micro_steps=2, ema=average))


def keras_window(memory="store", frozen=False, dropped=0.3):
    keras.utils.set_random_seed(1)
    images = keras.Input(SHAPE, dtype="float64")
    x = keras.layers.Conv2D(8, 3, use_bias=False, dtype="float64", trainable=not frozen)(images)
    x = keras.layers.ReLU(dtype="float64")(keras.layers.BatchNormalization(dtype="float64")(x))
    x = keras.layers.Dropout(dropped, dtype="float64")(x)
    x = keras.layers.ReLU(dtype="float64")(keras.layers.Conv2D(8, 3, dtype="float64")(x))
    x = keras.layers.Dropout(dropped, dtype="float64")(keras.layers.Flatten(dtype="float64")(x))
    model = keras.Model(images, keras.layers.Dense(CLASSES, dtype="float64")(x))
    built = KerasModel(KerasModelConfig(memory=memory, name="MobileNetV2"), model, tf.float64)
    return Window(built, build_optimizer(OPTIMIZERS[0]), micro_steps=2, seed=11)


@pytest.mark.parametrize("memory", ["store", pytest.param("recompute", marks=pytest.mark.slow)])
def test_a_model_of_keras_with_a_frozen_layer(runtime, memory):
    assert_same_updates(runtime, partial(keras_window, memory, frozen=True, dropped=0.0))


RANDOM = {"dropout of Keras": keras_window, "drop_path": lambda: float64(replace(revnet38(units=(1,)), drop_path=0.5))}


@pytest.mark.slow
@pytest.mark.parametrize("make_window", RANDOM.values(), ids=RANDOM)
def test_random_numbers_are_those_of_xla(runtime, make_window):
    """Of any XLA. The kernels of TensorFlow draw others from the same seeds."""
    assert_same_updates(runtime, make_window, xla=True)


# ---- what a commit does more -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"ema": average, "clip_norm": 0.1},
        {"adaptive_clip": 0.01, "reduction": "sum"},
        {"schedule": lambda step: 1.0 / (1.0 + tf.cast(step, tf.float32))},
    ],
    ids=lambda more: "-".join(more),
)
def test_options_of_a_window(runtime, more):
    assert_same_updates(runtime, lambda: float64(lenet(), SgdConfig(lr=0.05), micro_steps=2, **more))


@pytest.mark.slow
def test_weights_of_float32_with_sums_of_float64(runtime):
    window = partial(window_for, lenet(), SgdConfig(lr=0.05), SHAPE, micro_steps=2, sum_dtype=tf.float64)
    assert_same_updates(runtime, window, tolerance=1e-5)


@pytest.mark.slow
def test_examples_of_weight_0_count_for_nothing(runtime):
    weights = tf.constant([1.0] * 8 + [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    ragged = partial(batches_of, count=16, weight=weights)
    found = assert_same_updates(runtime, lambda: float64(lenet(), SgdConfig(lr=0.05), micro_steps=2), ragged)
    assert {update["examples"] for update in found} == {11.0}


@pytest.mark.slow
def test_mixed_labels(runtime):
    draw = np.random.default_rng(0)
    mixed = partial(
        batches_of,
        other_targets=tf.constant(draw.integers(0, CLASSES, 64), tf.int32),
        share=tf.constant(draw.uniform(size=64), tf.float32),
    )
    assert_same_updates(runtime, lambda: float64(lenet(), micro_steps=2), mixed)


@pytest.mark.slow
def test_a_loss_scale_halves_where_float16_overflows(runtime):
    """The first windows of both overflow; what is skipped changes nothing else."""

    def scaled():
        window = window_for(lenet(), SgdConfig(lr=0.05), SHAPE, precision="float16", micro_steps=2)
        return Window(
            window.model,
            build_optimizer(SgdConfig(lr=0.05)),
            micro_steps=2,
            loss_scale=LossScale(2.0**20, 4),
            seed=11,
        )

    found = assert_same_updates(runtime, scaled, count=12, tolerance=1e-2)
    assert not found[0]["finite"]
    assert found[-1]["finite"]
    assert found[-1]["skipped"] >= 1
    assert {update["loss_scale"] for update in found} > {2.0**20, 2.0**19}


# ---- the interface of Step -------------------------------------------------------------------------------------------


@pytest.fixture
def window():
    return float64(lenet(), micro_steps=2)


@pytest.mark.slow
def test_dropped_micro_steps_have_no_effect(runtime, window):
    other = float64(lenet(), micro_steps=2)
    one, two = runtime.build_step(window), runtime.build_step(other)
    one.accumulate(batches_of(), 1)
    one.drop()
    updates(one, window, batches_of(), 2)
    updates(two, other, batches_of(), 2)
    with runtime.reading():
        assert_same_bits(variables_of(window), variables_of(other))


@pytest.mark.slow
def test_a_window_that_is_not_full_is_refused_and_stays(runtime, window):
    step, batches = runtime.build_step(window), batches_of()
    step.accumulate(batches, 1)
    with pytest.raises(ValueError, match=r"the window holds 1 of its 2 micro-steps: accumulate as many"):
        step.commit()
    step.accumulate(batches, 1)
    assert step.commit()["examples"] == 16


@pytest.mark.slow
def test_a_partial_commit_is_the_update_of_what_there_is(runtime, window):
    expected = float64(lenet(), micro_steps=2)
    steps = Step(expected), runtime.build_step(window)
    for step in steps:
        step.accumulate(batches_of(), 1)
        assert np.asarray(step.commit(partial=True)["examples"]) == 8
    with runtime.reading():
        for one, other in zip(expected.variables_, window.variables_, strict=True):
            np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-11, atol=1e-14)


def test_batches_that_end_leave_those_before_in_the_window(runtime, window):
    three = iter(tf.data.Dataset.from_tensor_slices(examples(24, SHAPE)).batch(8, drop_remainder=True))
    step = runtime.build_step(window)
    step.accumulate(three, 2)
    step.commit()
    with pytest.raises(StopIteration):
        step.accumulate(three, 2)
    with pytest.raises(ValueError, match="an unknown number"):
        step.commit()
    assert step.commit(partial=True)["examples"] == 8
    with pytest.raises(StopIteration):
        step.accumulate(three, 1)


def test_a_batch_that_was_sent_ahead_is_not_lost(runtime, window):
    """Between two updates other batches are computed, as in an evaluation."""
    other = float64(lenet(), micro_steps=2)
    one, two = runtime.build_step(window), runtime.build_step(other)
    total = tf.Variable(0.0, dtype=tf.float64)
    evaluate = runtime.on_batches(
        lambda batch: total.assign_add(tf.reduce_sum(window.model(batch["inputs"], EVALUATION)))
    )
    batches, same = batches_of(), batches_of()
    for _ in range(3):
        updates(one, window, batches, 1)
        updates(two, other, same, 1)
        evaluate(batches_of(), 2)
    with runtime.reading():
        assert total.numpy() != 0
        assert_same_bits(variables_of(window), variables_of(other))


@pytest.mark.slow
def test_an_error_of_a_batch_is_that_of_the_micro_step_that_takes_it(runtime, window):
    data = tf.data.Dataset.range(3).map(
        lambda place: {name: tf.debugging.check_numerics(value, "bad") if name == "inputs" else value
                       for name, value in examples(8, SHAPE).items()}
        | {"weight": tf.ones([8]) * tf.debugging.check_numerics(1.0 / tf.cast(2 - place, tf.float32), "bad")}
    )  # fmt: skip
    batches, step = iter(data), runtime.build_step(window)
    step.accumulate(batches, 2)
    assert step.commit()["finite"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        step.accumulate(batches, 1)


def test_updates_in_one_call_are_refused(runtime, window):
    with pytest.raises(ValueError, match=r"JAX, .* make one update at a time"):
        runtime.build_step(window).updates(batches_of(), 2)


# ---- an evaluation of averages, which take the place of the weights on the device ------------------------------------


def test_averages_are_evaluated_and_the_weights_go_on(runtime):
    data = Dataset(*[ArraySplit(*map(np.asarray, examples(24, SHAPE).values()))] * 2, CLASSES, inputs=Arrays(SHAPE))

    def measured(by):
        window = float64(lenet(), ema=average)
        evaluator = Evaluator(window.model, window.ema, {"loss": cross_entropy}, data, "test", 8, by)
        step = by.build_step(window)
        updates(step, window, batches_of(), 2)
        found = evaluator(stop=lambda: False, report=lambda done, batches: None)["loss"]
        updates(step, window, batches_of(), 1)
        with by.reading():
            return found, [variable.numpy() for variable in window.variables_]

    (found, weights), (expected, others) = measured(runtime), measured(TensorFlowRuntime())
    assert found == pytest.approx(expected, rel=1e-12)
    assert distance(weights, others) <= 1e-12 * norm(others)


# ---- variables, whose values are on the device -----------------------------------------------------------------------


def test_a_variable_that_is_not_read_is_stale(runtime, window):
    """As in all tests of this folder, so that a forgotten `reading` shows. In the package it keeps its old value."""
    step = runtime.build_step(window)
    updates(step, window, batches_of(), 1)
    assert all(np.isnan(variable.numpy()).all() for variable in window.variables_)
    assert int(window.step) == -1
    with runtime.reading(window.variables_[:1]):
        assert np.isfinite(window.variables_[0].numpy()).all()
    assert np.isnan(window.variables_[1].numpy()).all()
    with runtime.reading():
        assert np.isfinite(window.variables_[1].numpy()).all()
        assert int(window.step) == 1


@pytest.mark.parametrize("within", [False, True])
def test_what_is_assigned_computes_next(runtime, window, within):
    """Within the context and after it, also if it is left by an error."""
    step, batches = runtime.build_step(window), batches_of()
    updates(step, window, batches, 1)

    def assign():
        with runtime.assigning(window.variables_):
            for variable in window.variables_:
                assert np.isfinite(variable.numpy()).all()
                variable.assign(tf.zeros_like(variable))
            if within:
                step.accumulate(batches, 2)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        assign()
    if not within:
        step.accumulate(batches, 2)
    assert step.commit()["loss"] == pytest.approx(np.log(CLASSES), rel=1e-12)


def test_what_is_assigned_without_saying_so_does_not_count(runtime, window):
    step, batches = runtime.build_step(window), batches_of()
    updates(step, window, batches, 1)
    for variable in window.variables_:
        variable.assign(tf.zeros_like(variable))
    step.accumulate(batches, 2)
    assert step.commit()["loss"] != pytest.approx(np.log(CLASSES), rel=1e-3)


def test_bytes_of_the_state_stay_while_variables_are_assigned(runtime, window):
    step, batches = runtime.build_step(window), batches_of()
    updates(step, window, batches, 1)
    held = runtime.count_bytes()
    with runtime.assigning():
        assert runtime.count_bytes() == held
    updates(step, window, batches, 1)
    assert runtime.count_bytes() == held
