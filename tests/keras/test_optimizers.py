"""Keras's optimizers with `steps`."""

from __future__ import annotations

import keras
import pytest

from accumtrain.keras import Accumulate, optimizers


def test_an_optimizer_of_keras_has_steps():
    optimizer = optimizers.AdamW(1e-3, weight_decay=0.1, steps=8)
    assert isinstance(optimizer, Accumulate)
    assert isinstance(optimizer.inner_optimizer, keras.optimizers.AdamW)
    assert (optimizer.steps, optimizer.weight_decay) == (8, 0.1)


@pytest.mark.parametrize("name", ["Adamm", "schedules", "get"])
def test_other_names_are_refused(name):
    with pytest.raises(AttributeError, match=f"no optimizer {name}"):
        getattr(optimizers, name)


def test_steps_are_needed():
    with pytest.raises(TypeError, match="steps"):
        optimizers.SGD(0.1)
