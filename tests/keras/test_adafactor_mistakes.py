"""Mistakes that `keras.Adafactor` refuses, and by the same rules the class of the library."""

import keras
import numpy as np
import pytest

import accumtrain.optim.adafactor
from accumtrain.keras import Accumulate, Adafactor


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"factored_axes": "first"}, "factored_axes=first: no such choice; choose from last, largest"),
        ({"momentum_of": "gradient"}, "choose from change, update"),
        ({"weight_decay_factor": "none"}, "weight_decay_factor=none: no such choice; did you mean one"),
        ({"momentum": 1.0}, "momentum=1.0: must be at least 0 and below 1"),
        ({"beta2": 1.0}, "beta2=1.0"),
        ({"epsilon1": 0.0}, "epsilon1=0.0"),
        ({"clip_threshold": 0.0}, "clip_threshold=0.0"),
        ({"min_dim_size_to_factor": 0}, "min_dim_size_to_factor=0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0: must be at least 0"),
        ({"weight_decay": float("nan")}, "weight_decay=nan: must be at least 0"),
        ({"unscaled_relative_step": 0.0}, "unscaled_relative_step=0.0: must be above 0"),
        ({"epsilon2": float("inf")}, "epsilon2=inf"),
        ({"epsilon1": 1e-46}, "epsilon1=1e-46: must be between"),
        ({"min_dim_size_to_factor": 2**63}, "must be a number of at most 64 bits"),
        ({"warmup_init": True, "learning_rate": 1e-2}, "learning_rate=0.01: only the relative step warms up"),
    ],
)
@pytest.mark.parametrize("kind", [Adafactor, accumtrain.optim.adafactor.Adafactor], ids=["keras", "library"])
def test_a_mistake_is_named(kind, options, says):
    with pytest.raises(ValueError, match=says):
        kind(**options)


def test_an_unknown_argument_is_named():
    with pytest.raises(ValueError, match="beta_2"):
        Adafactor(beta_2=0.9)


@pytest.mark.parametrize("rate", [None, lambda: 0.5], ids=["relative step", "callable"])
@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: Accumulate(inner, 2)], ids=["bare", "Accumulate"])
def test_a_rate_without_a_variable_can_not_be_set(rate, wrap):
    optimizer = wrap(Adafactor(rate))
    with pytest.raises(TypeError, match=r"learning_rate=0.1: .*make it with a number, Adafactor\(0.1\)"):
        optimizer.learning_rate = 0.1
    optimizer.learning_rate = lambda: 0.25
    assert float(optimizer.learning_rate) == 0.25


def test_a_given_rate_can_be_set():
    optimizer = Adafactor(1e-2)
    optimizer.learning_rate = 0.1
    assert float(optimizer.learning_rate) == pytest.approx(0.1)
    schedule = keras.optimizers.schedules.CosineDecay(0.5, 10)
    optimizer.learning_rate = schedule
    assert float(optimizer.learning_rate) == 0.5
    with pytest.raises(TypeError, match="LearningRateSchedule"):  # Keras's own
        optimizer.learning_rate = 0.1


def test_an_unknown_preset_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"preset='fairseq'.* paper, optax, huggingface, bojone"):
        Adafactor.from_preset("fairseq")


def test_half_precision_weights_are_refused():
    with pytest.raises(ValueError, match="float16"):
        Adafactor().build([keras.Variable(np.ones(3), dtype="float16")])
