"""A batch normalisation of a Keras model normalises one batch in a pass, or its statistics are those of none."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from keras import layers

from accumtrain.errors import ConfigError
from accumtrain.models.keras_model import called


def model_of(*trainings):
    """One batch normalisation, called once for each of `trainings`."""
    images, norm = keras.Input((3,)), layers.BatchNormalization(name="norm")
    outputs = [norm(images, training=training) for training in trainings]
    return keras.Model(images, layers.Dense(2)(layers.Add()(outputs) if len(outputs) > 1 else outputs[0]))


def call(model):
    state = [tf.convert_to_tensor(variable.value) for variable in model.non_trainable_variables]
    return called(model, state, tf.ones([4, 3]), training=True)


@pytest.mark.parametrize("trainings", [(None, None), (None, False), (True, True)])
def test_one_that_is_called_twice_is_refused(trainings):
    with pytest.raises(ConfigError, match="calls its batch normalisation norm twice in a pass"):
        call(model_of(*trainings))


@pytest.mark.parametrize("trainings", [(None,), (False, False)])
def test_one_that_is_called_once_or_only_reads_its_statistics_is_not(trainings):
    y, _, losses = call(model_of(*trainings))
    assert (y.shape, float(losses)) == ([4, 2], 0.0)
