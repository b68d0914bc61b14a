"""accumtrain.fit with settings={"device.runtime": "jax"}: the model of a user's program, computed by JAX."""

import keras
import pytest
import tensorflow as tf

from accumtrain.config.compiled import CurrentDeviceConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.errors import ConfigError
from tests.keras.cases import CASES, OPTIMIZERS, data_of, mlp, pair, run
from tests.keras.test_fit import distance

pytest.importorskip("jax")
pytestmark = [pytest.mark.xla, pytest.mark.usefixtures("empty_folder")]

BY_JAX = {"settings": {"device.runtime": "jax"}}


@pytest.mark.parametrize(
    ("name", "optimizer", "loss"),
    [
        ("mlp", "adamw", None),
        ("mlp", "adamw", "batch"),
        pytest.param("two_outputs", "rmsprop", "batch", marks=pytest.mark.slow),
        pytest.param("cnn", "lion", None, marks=pytest.mark.slow),
        pytest.param("lstm", "adafactor", None, marks=pytest.mark.slow),
    ],
)
def test_the_model_is_left_as_by_tensorflow(name, optimizer, loss, float64):
    """The 96 examples that are evaluated are not a multiple of the 40 of an update, so a smaller batch is last."""
    case = CASES[name]
    classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # that of the case computes in float32
    losses = {"kind": classes, "size": "mse"} if case.loss_weights else classes
    models = pair(case.build, optimizer=OPTIMIZERS[optimizer], loss=losses, loss_weights=case.loss_weights)
    start = [variable.numpy() for variable in models[0].variables]
    computed, expected = (
        run(model, data_of(case), batch_size=40, run_name=name, loss=loss, **more)
        for model, name, more in zip(models, ("jax", "tensorflow"), (BY_JAX, {}), strict=True)
    )
    assert distance(*models, start) < 1e-12
    assert computed["val"]["loss"] == pytest.approx(expected["val"]["loss"], rel=1e-6)


@pytest.mark.slow
def test_a_continued_run_has_the_bits_of_one_that_was_not_stopped():
    models = pair(mlp, optimizer=OPTIMIZERS["adam"], loss=CASES["mlp"].losses)
    for model, counts in zip(models, ([3, 6], [6]), strict=True):
        for updates in counts:
            run(model, data_of(CASES["mlp"]), updates, run_name=f"in{len(counts)}", **BY_JAX)
    for one, other in zip(models[0].variables, models[1].variables, strict=True):
        assert keras.ops.all(one.value == other.value), one.path


def test_a_program_that_computes_on_a_gpu_is_told_how_to_leave_it(monkeypatch):
    def refuse(*_):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    with pytest.raises(ConfigError, match=r'begin the program with tf\.config\.set_visible_devices\(\[\], "GPU"\)'):
        resolve_devices(CurrentDeviceConfig(runtime="jax"))
