"""A batch normalisation of a Keras model normalises one batch in a pass, or its statistics are those of none."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from keras import layers

from accumtrain.errors import ConfigError
from accumtrain.models.keras_call import StatelessCall, call_stateless


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
