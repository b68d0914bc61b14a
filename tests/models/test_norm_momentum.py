"""model.norm_momentum of a Keras model: what an update keeps of its moving statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.engine.norm_statistics import NormStatistics
from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.config import KerasModelConfig
from accumtrain.models.layers import ModelSpec

MOBILENET = KerasModelConfig(name="MobileNet", args={"alpha": 0.25})
SPEC = ModelSpec((32, 32, 3), 4)


def change_by_an_update(config):
    """Return the move of the first normalisation's statistics by one update, [2, channels]."""
    model = build_model(config, SPEC)
    mode = Mode(training=True, recording=True, seed=tf.zeros([2], tf.int32))
    model(tf.random.stateless_uniform([4, 32, 32, 3], [0, 1]), mode)
    norm = model.norms[0]
    before = norm.moving_mean.numpy(), norm.moving_variance.numpy()
    buffer = NormStatistics(model.norms, lambda shape: tf.Variable(tf.zeros(shape), trainable=False))
    buffer.add(mode.statistics, tf.constant(4.0))
    buffer.write([tf.convert_to_tensor(each) for each in buffer.buffers], tf.constant(4.0))
    return np.subtract((norm.moving_mean.numpy(), norm.moving_variance.numpy()), before)


def test_it_is_what_an_update_keeps():
    """MobileNet's own is 0.99, so 0.5 moves the statistics 50 times as far."""
    own, half = change_by_an_update(MOBILENET), change_by_an_update(replace(MOBILENET, norm_momentum=0.5))
    np.testing.assert_allclose(half, 50 * own, rtol=1e-3, atol=1e-5)
    assert np.abs(half).max() > 0.1


def test_a_model_without_batch_norm_refuses_it():
    with pytest.raises(ConfigError, match=r"model.norm_momentum=0.5: VGG16 has no batch normalisation; leave it out"):
        build_model(KerasModelConfig(name="VGG16", norm_momentum=0.5), SPEC)
