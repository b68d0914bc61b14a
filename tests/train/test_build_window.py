"""A window has what the configuration of a run says."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import DigitsConfig
from accumtrain.data.inputs.pixels import make_pixels
from accumtrain.tasks.objective import build_objective
from accumtrain.train.build import build_window

UPDATES = 20
INPUTS = make_pixels(DigitsConfig(), (8, 8, 1), 16)
DIGITS = SimpleNamespace(inputs=INPUTS, num_classes=3, class_names=None, train=None)
LOGITS, LABELS = tf.constant([[2.0, 0.5, -1.0]]), tf.constant([0])


@pytest.fixture
def build(compose):
    def window(*overrides):
        config = compose("model=lenet5", *overrides)
        return build_window(config, build_objective(config, DIGITS), UPDATES, tf.distribute.get_strategy())

    return window


def test_the_keys_of_a_run_are_those_of_its_window(build):
    window = build(
        "run.seed=5", "batch_size=12", "accum.steps=3", "accum.reduction=sum", "accum.dtype=float64",
        "optim.clip_norm=0.25", "ema.decay=0.5", "schedule=cosine", "schedule.final=0.125", "loss.label_smoothing=0.3",
    )  # fmt: skip
    assert (window.seed, window.micro_steps, window.reduction) == (5, 3, "sum")
    assert (window.clip_norm, window.adaptive_clip, window.loss_scale) == (0.25, 0.0, None)
    assert {buffer.dtype for buffer in window.gradients} == {tf.float64}
    assert window.ema.decay == 0.5
    assert float(window.schedule(tf.constant(UPDATES - 1, tf.int64))) == 0.125
    assert [*window.metrics] == ["accuracy"]
    log_probabilities = tf.nn.log_softmax(LOGITS)[0].numpy()
    expected = -0.7 * log_probabilities[0] - 0.1 * log_probabilities.sum()
    np.testing.assert_allclose(window.loss_function(LABELS, LOGITS), [expected], rtol=1e-6)


def test_what_a_run_does_not_ask_for_is_left_out(build):
    window = build()
    assert window.ema is window.loss_scale is None
    assert {buffer.dtype for buffer in window.gradients} == {tf.float32}


def test_float16_has_a_loss_scale_and_units_can_be_clipped_one_by_one(build):
    window = build("precision=float16", "loss_scale.initial=64", "loss_scale.growth_every=2", "optim.adaptive_clip=0.5")
    assert (float(window.loss_scale.value), window.adaptive_clip, window.clip_norm) == (64.0, 0.5, 0.0)
    for expected in (64.0, 128.0):
        window.loss_scale.after_update()
        assert float(window.loss_scale.value) == expected
