"""Remedies when memory ends: only what this model and this job can do."""

from dataclasses import replace

import pytest
import tensorflow as tf
from hydra.core.hydra_config import HydraConfig

from accumtrain.errors import OutOfMemoryError
from accumtrain.train.tell.remedies import apply_remedies, describe_out_of_memory, explain_errors, remedies


@pytest.fixture(autouse=True)
def _without_command_line(monkeypatch):
    """Other tests of the same process may have left Hydra's configuration of a command."""
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)


REVERSIBLE = ("model=revnet38", "optim=adam", "batch_size=48", "accum.steps=4")
STORED = (*REVERSIBLE, "model.memory=store")
LARGE = ("precision=float64", "accum.steps=64")
RECOMPUTED = ["model.memory=recompute"]


@pytest.mark.parametrize(
    ("overrides", "replicas", "expected"),
    [
        (REVERSIBLE, 1, ["accum.steps=8", "optim=adafactor", "precision=bfloat16"]),
        ((*REVERSIBLE, "accum.steps=48"), 1, ["optim=adafactor", "precision=bfloat16"]),
        ((*REVERSIBLE, "accum.steps=auto"), 1, ["optim=adafactor", "precision=bfloat16"]),
        ((*REVERSIBLE, "accum.steps=16"), 3, ["optim=adafactor", "precision=bfloat16"]),
        ((*REVERSIBLE, "batch_size=60"), 1, ["accum.steps=10", "optim=adafactor", "precision=bfloat16"]),
        (STORED, 1, ["accum.steps=8", *RECOMPUTED, "model.memory=reverse", "optim=adafactor", "precision=bfloat16"]),
        (("model=resnet20", "optim=sgd", "optim.momentum=0", "precision=bfloat16"), 1, ["accum.steps=", *RECOMPUTED]),
        (("model=resnet20", "model.norm=group", *LARGE), 1, [*RECOMPUTED, "precision=bfloat16"]),
        (("model=lenet5", "model.memory=recompute", "accum.steps=64"), 1, ["precision=bfloat16"]),
        *(((*STORED, f"job={job}"), 1, ["accum.steps=8"]) for job in ("evaluate", "predict", "export")),
        ((*STORED, "job=evaluate", "accum.reduction=sum"), 1, []),
        ((*STORED, "job=verify"), 1, ["accum.steps=8", "optim=adafactor", "precision=bfloat16"]),
    ],
)
def test_remedies(compose, overrides, replicas, expected):
    found = [remedy.override for remedy in remedies(compose(*overrides), replicas)]
    assert len(found) == len(expected)
    assert all(override.startswith(start) for override, start in zip(found, expected, strict=True))


def test_all_remedies_together(compose):
    config = compose(*STORED)
    expected = compose(*REVERSIBLE, "accum.steps=8", "optim=adafactor", "precision=bfloat16")
    assert apply_remedies(config, remedies(config, replicas=1)) == expected


def test_words(compose):
    assert describe_out_of_memory(compose(*REVERSIBLE, "device.memory_limit_mb=99"), replicas=1) == (
        "device.memory_limit_mb=99 (MB of tensors) is not enough for this run. accum.steps=auto finds the largest "
        "micro-batch that fits. Each of these takes less, though one may not be enough: accum.steps=8 (micro-batches "
        "of 6 instead of 12, batch_size stays); optim=adafactor (almost no optimizer state, another learning rate); "
        "precision=bfloat16 (activations of half the size); a larger device.memory_limit_mb"
    )
    assert describe_out_of_memory(compose(*REVERSIBLE), replicas=1).endswith("; a smaller model or smaller images")


@pytest.mark.parametrize(
    "overrides",
    [
        ("accum.steps=48",),
        ("accum.steps=auto",),
        ("accum.reduction=sum",),
        ("job=evaluate",),
        ("job=verify",),
        ("device=mirrored", "device.virtual=2", "accum.steps=24"),
    ],
)
def test_auto_is_offered_only_where_it_helps(compose, overrides):
    config = compose(*REVERSIBLE, *overrides)
    assert "accum.steps=auto" not in describe_out_of_memory(config, config.device.known_replicas)


def run_out_of_memory(config):
    with explain_errors(config, data=None):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")


@pytest.mark.parametrize(
    ("budget", "offered"),
    [([], True), (["model.memory=store"], True), pytest.param(["model.memory=70"], False, marks=pytest.mark.slow)],
)
def test_auto_is_not_offered_beside_a_budget(command, fake_job, budget, offered):
    fake_job(lambda config: run_out_of_memory(replace(config, model=config.model.with_policy("store"))))
    answer = command("model=resnet20", "data=synthetic", *budget)
    assert ("accum.steps=auto" in answer.err) == offered
    assert "accum.steps=2 (micro-batches of 32 instead of 64" in answer.err


def test_a_run_without_memory_names_the_command_that_shows_numbers(command, fake_job):
    fake_job(run_out_of_memory)
    answer = command("model=resnet20", "run.name=a_b", "data=synthetic", "job=train")
    assert answer.code == OutOfMemoryError.exit_code
    assert answer.err.endswith(
        "What each micro-batch and memory policy takes, in numbers: "
        "accumtrain job=plan model=resnet20 run.name=a_b data=synthetic\n"
    )
