"""Batch normalisations of a Keras model: each normalises one batch in a pass, and model.norm_momentum is of all."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from accumtrain.backprop.mode import Mode
from accumtrain.engine.norm_statistics import NormStatistics
from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.config import KerasModelConfig
from accumtrain.models.keras.call import StatelessCall, call_stateless
from accumtrain.models.layers import ModelSpec


class Calls(layers.Layer):
    """Call a batch normalisation once for each of `trainings`, which decides over what the model is called with."""

    def __init__(self, trainings):
        super().__init__()
        self.norm, self.trainings = layers.BatchNormalization(name="norm"), trainings

    def call(self, x):
        return sum(self.norm(x, training=training) for training in self.trainings)


def model_of(*trainings):
    images = keras.Input((3,))
    return keras.Model(images, layers.Dense(2)(Calls(trainings)(images)))


def call(model):
    state = [tf.convert_to_tensor(variable.value) for variable in model.non_trainable_variables]
    return call_stateless(model, state, tf.ones([4, 3]), training=True)


@pytest.mark.parametrize("trainings", [(True, True), (True, False), (False, True)])
def test_one_that_is_called_twice_is_refused(trainings):
    with pytest.raises(ConfigError, match="calls its batch normalisation norm twice in a pass"):
        call(model_of(*trainings))


@pytest.mark.parametrize("trainings", [(True,), (False,), (False, False)])
def test_one_that_is_called_once_or_only_reads_its_statistics_is_not(trainings):
    y, _, losses = call(model_of(*trainings))
    assert (y.shape, float(losses)) == ([4, 2], 0.0)


def test_assignments_and_reads_are_counted():
    variable, other = keras.Variable(1.0), keras.Variable(2.0)
    with StatelessCall() as scope:
        for _ in range(2):
            variable.assign(3.0)
    assert (scope.assignments[id(variable)], scope.assignments[id(other)]) == (2, 0)
    read = scope.reads[id(variable)]
    with scope:
        assert float(variable.value) == 3.0
    assert scope.reads[id(variable)] == read + 1


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


def test_norm_momentum_is_what_an_update_keeps():
    """MobileNet's own is 0.99, so 0.5 moves the statistics 50 times as far."""
    own, half = change_by_an_update(MOBILENET), change_by_an_update(replace(MOBILENET, norm_momentum=0.5))
    np.testing.assert_allclose(half, 50 * own, rtol=1e-3, atol=1e-5)
    assert np.abs(half).max() > 0.1


def test_a_model_without_batch_norm_refuses_norm_momentum():
    with pytest.raises(ConfigError, match=r"model.norm_momentum=0.5: VGG16 has no batch normalisation; leave it out"):
        build_model(KerasModelConfig(name="VGG16", norm_momentum=0.5), SPEC)
