"""Micro-steps compiled by XLA."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import replay
from accumtrain.dispatch import run
from accumtrain.engine.step import Step
from accumtrain.optim.config import SgdConfig
from tests.engine.small import bottleneck_revnet, distance, examples, lenet, norm, revnet38, window_for

pytestmark = pytest.mark.xla

SHAPE, MICRO_BATCH = (8, 8, 3), 8
SGD = SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.9)


def sums_of_a_window(config, xla, shape=SHAPE):
    window = window_for(config, SGD, shape)
    step = Step(window, xla=xla)
    dataset = tf.data.Dataset.from_tensor_slices(examples(2 * MICRO_BATCH, shape))
    step.accumulate(iter(dataset.batch(MICRO_BATCH, drop_remainder=True)), 2)
    sums = [*window.gradients, window.examples, window.loss, *window.metric_sums, *window.statistics.buffers]
    return [buffer.numpy() for buffer in sums]


# without the grid, on which a sum that is rounded otherwise may fall on the next point
SMOOTH = replace(revnet38("group", units=(2, 1)), snap_bits=0)


@pytest.mark.parametrize(
    "config", [pytest.param(lenet(), id="lenet"), pytest.param(SMOOTH, id="revnet", marks=pytest.mark.slow)]
)
def test_sums_are_those_of_tensorflows_kernels(config):
    for compiled, plain in zip(sums_of_a_window(config, True), sums_of_a_window(config, False), strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        pytest.param(revnet38(units=(2, 1)), SHAPE, id="revnet38"),
        pytest.param(replace(bottleneck_revnet(), units=[2, 1]), (32, 32, 3), id="bottleneck", marks=pytest.mark.slow),
    ],
)
def test_gradient_is_that_of_stored_activations(config, shape, monkeypatch):
    """To rounding: XLA sums in another order where it fuses otherwise; single sums of many values differ by more."""
    monkeypatch.setattr(replay, "LANES", 32)  # both streams of a stem together
    stored = sums_of_a_window(replace(config, memory="store"), True, shape)
    for policy in ("reverse", "recompute"):
        other = sums_of_a_window(replace(config, memory=policy), True, shape)
        assert distance(other, stored) <= 3e-6 * norm(stored), policy


@pytest.mark.slow
def test_a_reversal_is_not_said_to_be_exact(compose, tmp_path, capsys):
    small = ("model=revnet38", "model.units=[2]", "model.filters=[16,16]", "batch_size=8", "train.steps=2")
    told = {}
    for xla in ("true", "false"):
        done = run(compose(*small, f"run.dir={tmp_path}", f"run.name=xla_{xla}", f"device.xla={xla}"))
        shown = " ".join(capsys.readouterr().out.split())
        told[xla] = done["reversal"], "reversed activations are not compared" in shown
    assert told == {"true": ("not compared", True), "false": ("exact", False)}
    done = run(compose(*small, f"run.dir={tmp_path}", "run.name=stored", "model.memory=store"))
    assert done["reversal"] is None
