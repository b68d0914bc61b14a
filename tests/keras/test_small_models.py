"""Every job of accumtrain.fit over the table of small Keras models."""

from typing import Any

import keras
import numpy as np
import pytest

import accumtrain
from accumtrain.errors import ConfigError
from tests.keras.small_models import SMALL_MODELS

pytestmark = pytest.mark.usefixtures("empty_folder")
UNCUT = {  # models that memory="recompute" refuses, and why
    "embedding": "has no cut points",
    "two_inputs_and_outputs": "has no cut points",
    "shared_layer": "one layer is called in several places",
}


def run(name: str, **arguments: Any) -> tuple[keras.Model, dict[str, Any]]:
    small = SMALL_MODELS[name]
    keras.utils.set_random_seed(0)
    model = small.build()
    model.compile(keras.optimizers.Adam(0.01), small.loss)
    draw = np.random.default_rng(0)
    data = small.inputs(draw), small.targets(draw)
    given = {"batch_size": 32, "steps": 4, "validation_data": data, "run_name": name, **arguments}
    return model, accumtrain.fit(model, data, **given)


@pytest.mark.parametrize(
    "name", [name if name == "embedding" else pytest.param(name, marks=pytest.mark.slow) for name in SMALL_MODELS]
)
def test_verify(name: str) -> None:
    """Of a model that has no cut points, too, for which recomputation is left out."""
    _, result = run(name, job="verify")
    assert result["passed"]
    recomputed = [check["check"] for check in result["checks"] if "memory=recompute" in check["check"]]
    assert bool(recomputed) == (name not in UNCUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_training_with_recomputation_is_training_without(name: str) -> None:
    """And the model can be saved, and gives the same when it is loaded."""
    stored, _ = run(name, run_name="stored")
    if name in UNCUT:
        with pytest.raises(ConfigError, match=UNCUT[name]):
            run(name, memory="recompute", run_name="recomputed")
        return
    model, _ = run(name, memory="recompute", run_name="recomputed")
    for expected, actual in zip(stored.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    model.save("model.keras")
    x = SMALL_MODELS[name].inputs(np.random.default_rng(0))
    loaded = keras.models.load_model("model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_plan(name: str) -> None:
    _, result = run(name, job="plan", batch_size=2, steps=None)
    assert result["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_steps_that_are_found(name: str) -> None:
    _, result = run(name, steps="auto", memory_limit_mb=2000)
    assert result["accum_steps"] == 1
