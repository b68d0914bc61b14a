"""Both doors of accumulation against one big batch: models x optimizers x micro-batches x replicas x precisions."""

from __future__ import annotations

import json

import pytest

from tests.keras.matrix import beyond
from tests.keras.programs import run_python

HALF = 1e-2  # in half precision sums over a micro-batch are rounded where those over the batch were


def differences(*arguments: str) -> dict[str, float]:
    """Return what `tests/keras/matrix.py` prints."""
    found: dict[str, float] = json.loads(run_python("-m", "tests.keras.matrix", *arguments).splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_sum_of_losses_beside_penalties_on_two_replicas():
    arguments = ("--steps", "2", "4", "--replicas", "2", "--doors", "accumulate", "--updates", "2")
    found = differences("--models", "summed", "--optimizers", "sgd", *arguments)
    assert len(found) == 2
    assert not beyond(found)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "mobilenet", "lstm", "two_outputs"])
def test_all_optimizers(model):
    found = differences("--models", model)
    assert len(found) == 2 * 8 * 3
    assert not beyond(found)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", ["2", "4"])
def test_all_optimizers_on_replicas(replicas):
    found = differences("--models", "mlp", "cnn", "lstm", "two_outputs", "--steps", "2", "4", "--replicas", replicas)
    assert len(found) == 4 * 8 * 4
    assert not beyond(found)


@pytest.mark.slow
@pytest.mark.xla
def test_all_optimizers_with_xla():
    found = differences("--models", "mlp", "cnn", "lstm", "two_outputs", "--steps", "4", "--jit")
    assert len(found) == 4 * 8 * 2
    assert not beyond(found)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_first_update_in_half_precision(policy):
    """Two updates that are each as far from float32's as the precision rounds are at most twice as far apart.

    How far that is depends on the processor: Adam and Lion make a whole step of a gradient near 0, whatever its sign.
    """
    arguments = ("--optimizers", "sgd", "adam", "lion", "own", "--updates", "1", "--policy", policy)
    found = differences("--models", "mlp", "cnn", "lstm", "two_outputs", "--steps", "2", "4", "8", *arguments)
    assert len(found) == 4 * 4 * (3 * 2 + 1)
    errors = {case.partition(" ")[2]: apart for case, apart in found.items() if case.startswith("error")}
    for case, apart in found.items():
        door, model, optimizer, *_ = case.split()
        assert door == "error" or apart <= max(2 * errors[f"{model} {optimizer}"], HALF), (case, apart)
