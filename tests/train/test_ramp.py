"""A batch that grows: the same weights however it is cut, stopped or divided, and those of runs that force it."""

import random
import subprocess
import sys

import numpy as np
import pytest

from accumtrain.dispatch import run
from accumtrain.runs.checkpoint_store import newest_manifest
from accumtrain.train.hooks import Hook, hooked
from tests.train.conftest import assert_same_tensors, json_of, records_of, tensors_of

RAMP = "batch_ramp={0:16,0.25:32,0.5:64}"  # 640 examples: 10 updates of 16, 5 of 32, 5 of 64
HALF_LIVES = ("optim.half_life=300", "optim.half_life_first=40", "ema.half_life=200")
SMALL = (
    *("model=lenet5", "data=synthetic", "data.train_examples=100", "data.test_examples=20", "data.augment=crop_flip"),
    *("optim=adam", *HALF_LIVES, "batch_size=16", "accum.steps=2", "train.steps=20", "checkpoint.every=1"),
    *("log.every=1", "eval.every=8", "checkpoint.keep=2", "run.name=one"),
)


PROGRAM = (sys.executable, "-m", "accumtrain")


class Killed(BaseException):
    """Ends a run as a kill would."""


@pytest.fixture
def train(compose, tmp_path):
    """Train a run in a folder of this name. Return the folder of the run."""

    def of(name, *overrides):
        run(compose(*SMALL, RAMP, f"run.dir={tmp_path / name}", *overrides))
        return tmp_path / name / "one"

    return of


def last_state(folder, step=20):
    return tensors_of(folder / "checkpoints" / f"step-{step}")


def test_the_same_is_learned_for_every_number_of_micro_batches(train):
    states = [last_state(train(str(steps), "precision=float64", f"accum.steps={steps}")) for steps in (1, 2, 4, 8)]
    for state in states[1:]:
        for name, value in states[0].items():
            np.testing.assert_allclose(state[name], value, rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.slow
def test_two_replicas_learn_what_one_does(tmp_path, train):
    """In a process of its own, as TensorFlow's devices are chosen once."""
    keys = (*SMALL, RAMP, "precision=float64", "accum.dtype=float64", f"run.dir={tmp_path / 'two'}")
    more = ("device=mirrored", "device.virtual=2", "accum.steps=1")
    subprocess.run([*PROGRAM, *keys, *more], check=True, capture_output=True)
    one, two = last_state(train("one", "precision=float64", "accum.dtype=float64")), last_state(tmp_path / "two/one")
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-11, atol=1e-13, err_msg=name)


def test_a_ramp_is_what_runs_that_go_on_with_a_larger_batch_make(compose, train, tmp_path):
    """Updates of each batch end where the ramp has another one. Half-lives and the position go on."""
    forced = (*SMALL, f"run.dir={tmp_path / 'forced'}", "run.resume=force", "schedule=constant")
    for steps, batch, updates in ((2, 16, 10), (4, 32, 15), (8, 64, 20)):
        run(compose(*forced, f"batch_size={batch}", f"accum.steps={steps}", f"train.steps={updates}"))
    ramp = train("ramp", "schedule=constant")
    assert_same_tensors(last_state(tmp_path / "forced/one"), last_state(ramp))
    assert newest_manifest(ramp / "checkpoints")["examples"] == 10 * 16 + 5 * 32 + 5 * 64
    epochs = [record["epoch"] for record in records_of(ramp, "train")]
    assert epochs == pytest.approx(np.cumsum(10 * [0.16] + 5 * [0.32] + 5 * [0.64]), rel=1e-12)
    assert json_of(ramp)["epoch"] == 6.0, "the last update completes the sixth epoch"


@pytest.mark.parametrize("stopped", [9, 10, 11, 14, 15, 19])
def test_a_ramp_that_is_stopped_goes_on_with_the_same_bits(train, stopped):
    def end(state):
        if state.step == stopped:
            raise Killed

    whole = train("whole")
    with hooked([Hook(end, 1, "update")]), pytest.raises(Killed):
        train("killed")
    again = train("killed")
    assert_same_tensors(last_state(again), last_state(whole))
    assert records_of(again) == records_of(whole)


@pytest.mark.slow
def test_a_ramp_that_is_killed_at_random_moments_goes_on_with_the_same_bits(tmp_path, train):
    whole, delay = train("whole"), random.Random(0)
    command = [*PROGRAM, *SMALL, RAMP, f"run.dir={tmp_path / 'killed'}"]
    kills, ended = 0, None
    while ended is None and kills < 40:
        try:
            ended = subprocess.run(command, timeout=delay.uniform(2, 7), capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            kills += 1  # by SIGKILL
    assert ended is not None
    assert (ended.returncode, kills > 0) == (0, True), ended.stderr
    assert_same_tensors(last_state(tmp_path / "killed/one"), last_state(whole))


@pytest.mark.slow
def test_jax_follows_the_batch(train):
    float64 = ("precision=float64",)
    one, other = last_state(train("one", *float64)), last_state(train("other", *float64, "device.runtime=jax"))
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
