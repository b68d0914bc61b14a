"""A loss of the whole batch by JAX: its updates and evaluations are those of TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.open_data import open_data
from accumtrain.engine.losses import WholeBatch
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.errors import ConfigError
from accumtrain.optim.config import SgdConfig
from accumtrain.train.evaluator import Evaluator
from tests.engine.small import CLASSES, distance, examples, lenet, resnet20, window_for
from tests.engine.test_whole_batch import supcon

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.xla

SHAPE = (8, 8, 1)
SGD = SgdConfig(lr=0.05, momentum=0.9)


@pytest.fixture(scope="module", autouse=True)
def devices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        jax.config.update("jax_enable_x64", True)
        yield jax.devices("cpu")


@pytest.fixture
def runtime(devices):
    from accumtrain.pjrt.runtime import JaxRuntime

    return JaxRuntime(devices[:1])


def window_of(model, **more):
    window = window_for(model, SGD, SHAPE, precision="float64", micro_steps=4, **more)
    window.loss_function = WholeBatch(supcon)
    return window


def batches_of(size=8, **more):
    data = tf.data.Dataset.from_tensor_slices({**examples(64, SHAPE), **more})
    return iter(data.batch(size, drop_remainder=True).repeat())


def made_by(runtime, window, batches, updates=3, partial=None):
    step, scalars = runtime.build_step(window), []
    for _ in range(updates):
        step.accumulate(batches, partial or 4)
        scalars.append({name: np.asarray(value).item() for name, value in step.commit(partial=bool(partial)).items()})
    with runtime.reading():
        return scalars, [variable.numpy() for variable in window.variables_]


@pytest.mark.parametrize("model", [lenet(), pytest.param(resnet20(units=(1, 1)), marks=pytest.mark.slow)])
@pytest.mark.parametrize("partial", [None, 3])
def test_its_updates_are_those_of_tensorflow(runtime, model, partial):
    ours, theirs = window_of(model), window_of(model)
    start = [variable.numpy() for variable in theirs.variables_]
    found, expected = (
        made_by(by, window, batches_of(), partial=partial)
        for by, window in ((runtime, ours), (TensorFlowRuntime(), theirs))
    )
    assert distance(found[1], expected[1]) <= 1e-12 * distance(expected[1], start)
    for one, other in zip(found[0], expected[0], strict=True):
        assert one == pytest.approx(other, rel=1e-11)


def test_a_weight_that_the_loss_reads_has_its_gradient(runtime):
    """Its value is on the device, and the host computes the loss."""

    def with_scale(window):
        scale = window.variables_[-1]
        window.loss_function = WholeBatch(lambda labels, logits: supcon(labels, logits) + tf.reduce_sum(scale**2))
        return window

    found, expected = (
        made_by(by, with_scale(window_of(lenet())), batches_of()) for by in (runtime, TensorFlowRuntime())
    )
    assert [each["loss"] for each in found[0]] == pytest.approx([each["loss"] for each in expected[0]], rel=1e-12)
    np.testing.assert_allclose(found[1][-1], expected[1][-1], rtol=1e-9)


def test_examples_without_weight_are_left_out(runtime):
    weight = tf.constant([1.0, 0.0] * 32)
    found, expected = (
        made_by(by, window_of(lenet()), batches_of(weight=weight), updates=1) for by in (runtime, TensorFlowRuntime())
    )
    assert found[0][0]["examples"] == 16
    assert found[0][0] == pytest.approx(expected[0][0], rel=1e-11)


def test_a_dropped_window_leaves_nothing(runtime):
    window, other = window_of(lenet()), window_of(lenet())
    step = runtime.build_step(window)
    step.accumulate(batches_of(), 3)
    step.drop()
    step.accumulate(batches_of(), 4)
    step.commit()
    _, expected = made_by(TensorFlowRuntime(), other, batches_of(), updates=1)
    with runtime.reading():
        assert distance([variable.numpy() for variable in window.variables_], expected) < 1e-12


def test_its_evaluations_are_those_of_tensorflow(runtime, compose):
    data = open_data(compose("data=digits").data, 0)

    def measured(by):
        window = window_of(lenet(), metrics={"size": lambda labels, logits: tf.reduce_sum(logits**2, axis=-1)})
        evaluator = Evaluator(
            window.model, None, {"loss": window.loss_function, **window.metrics}, data, "test", 50, by, together=3
        )
        made_by(by, window, batches_of(), updates=1)  # so that the weights are on the device
        found = evaluator(stop=lambda: False, report=lambda done, batches: None)
        return {name: value for name, value in found.items() if name != "seconds"}

    assert measured(runtime) == pytest.approx(measured(TensorFlowRuntime()), rel=1e-9)
    assert data.num_classes == CLASSES


def test_several_devices_are_refused(runtime, monkeypatch):
    monkeypatch.setattr(type(runtime), "replicas", 2)
    with pytest.raises(ConfigError, match=r"takes one device, and there are 2; use device\.runtime=tensorflow"):
        runtime.build_step(window_of(lenet()))


def test_random_numbers_that_would_be_drawn_anew_are_refused(runtime):
    window = window_of(lenet())
    layer = window.model.segments[0].layers[0]
    window.model.segments[0].layers[0] = lambda x, mode: layer(x + tf.random.uniform([], dtype=x.dtype), mode)
    with pytest.raises(ConfigError, match=r"draws random numbers by RandomUniform, and the second pass"):
        runtime.build_step(window).accumulate(batches_of(), 1)
