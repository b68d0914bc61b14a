"""A run that JAX computes: stopped, continued, moved from and to TensorFlow, evaluated."""

import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.dispatch import run
from accumtrain.engine.window import Window
from accumtrain.errors import CheckpointError, ConfigError, DivergedError, Preempted
from accumtrain.train import hooks
from accumtrain.train.checkpoint import CheckpointStore
from accumtrain.train.hooks import add_hook
from tests.programs import output_of
from tests.train.conftest import assert_same_tensors, records_of, tensors_of

pytest.importorskip("jax")
pytestmark = pytest.mark.xla

SMALL = (
    *("device=cpu", "device.runtime=jax", "model=lenet5", "batch_size=64", "accum.steps=2", "log.every=1"),
    *("ema.decay=0.9", "data.val_fraction=0.2", "eval.every=3", "checkpoint.every=2"),
)
MEASURED = ("loss", "probability")
COMMAND = "import sys; from accumtrain.cli.command import command; sys.exit(command())"


@pytest.fixture(autouse=True)
def added():
    """The hooks of a test, and of no other."""
    yield
    hooks.ADDED.clear()


@pytest.fixture
def config(compose, tmp_path):
    def of(name, *overrides, steps=6):
        return compose(*SMALL, f"train.steps={steps}", f"run.dir={tmp_path}", f"run.name={name}", *overrides)

    return of


@pytest.fixture(scope="module")
def whole(compose, tmp_path_factory):
    """The folder of a run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run(compose(*SMALL, "train.steps=6", f"run.dir={folder}", "run.name=whole"))
    return folder / "whole"


def state_of(folder, step=6):
    return tensors_of(folder / f"checkpoints/step-{step}")


def assert_same_run(folder, expected):
    """Weights, optimizer state, averages and figures, to the bit."""
    assert_same_tensors(state_of(folder), state_of(expected))
    assert records_of(folder) == records_of(expected)


def at_call(monkeypatch, owner, name, number, action):
    """Call `action` before a method is called for the time `number`."""
    method, calls = getattr(owner, name), []

    def counted(*arguments, **keywords):
        calls.append(1)
        if len(calls) == number:
            action()
        return method(*arguments, **keywords)

    monkeypatch.setattr(owner, name, counted)


# ---- stopped and continued -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupt_within_a_window_loses_nothing(config, whole, tmp_path, monkeypatch):
    from accumtrain.pjrt.programs import JaxPrograms

    with monkeypatch.context() as patch:
        patch.setattr("accumtrain.engine.step.SECONDS_PER_CALL", 0)  # so each call makes one micro-step
        at_call(patch, JaxPrograms, "micro_steps", 7, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Preempted, match="stopped after update 3 of 6") as stopped:
            run(config("stopped"))
    assert stopped.value.exit_code == 75
    run(config("stopped"))
    assert_same_run(tmp_path / "stopped", whole)


class Killed(BaseException):
    """Ends a run as a kill would."""


@pytest.mark.slow
def test_a_killed_run_repeats_what_it_has_lost(config, whole, tmp_path, monkeypatch):
    from accumtrain.pjrt.programs import JaxPrograms

    def die():
        raise Killed

    with monkeypatch.context() as patch:
        at_call(patch, JaxPrograms, "commit", 6, die)
        with pytest.raises(Killed):
            run(config("killed"))
    assert records_of(tmp_path / "killed")[-1]["step"] == 5
    run(config("killed"))
    assert_same_run(tmp_path / "killed", whole)


@pytest.mark.slow
def test_another_process_goes_on_with_the_same_bits(tmp_path):
    """The first part is tested at its own end, too."""
    for name, steps in (("parts", 3), ("parts", 6), ("whole", 6)):
        schedule = "schedule=constant"
        output_of("-c", COMMAND, *SMALL, f"train.steps={steps}", schedule, f"run.name={name}", cwd=tmp_path)
    parts, whole = tmp_path / "runs/parts", tmp_path / "runs/whole"
    assert_same_tensors(state_of(parts), state_of(whole))
    for split in ("train", "val"):
        assert records_of(parts, split) == records_of(whole, split)


@pytest.mark.slow
def test_a_full_disk_ends_a_run_that_can_be_continued(config, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:

        def full(*arguments):
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

        at_call(patch, CheckpointStore, "write", 2, full)
        with pytest.raises(CheckpointError, match="no space left on the device"):
            run(config("full"))
    run(config("full"))
    assert_same_run(tmp_path / "full", whole)


@pytest.mark.slow
def test_walltime_and_patience_end_a_run(config, tmp_path):
    with pytest.raises(Preempted, match="after update 0 of 6"):
        run(config("late", "run.walltime=0:01"))  # a second: the process is older
    summary = run(config("patient", "train.patience=1", "optim=sgd", "optim.lr=1e-12", "eval.every=1"))
    assert (summary["status"], summary["step"]) == ("completed", 2)


# ---- updates that are not finite -------------------------------------------------------------------------------------


@pytest.fixture
def infinite(monkeypatch):
    """The loss of update 4 is infinite, until a rollback has halved the rate."""

    def plant(window):
        kept = window.loss_function

        def loss(labels, logits):
            values = kept(labels, logits)
            bad = (window.step == 3) & (window.schedule(window.step) == 1.0)
            return tf.where(bad, tf.constant(np.inf, values.dtype), values)

        window.loss_function = loss

    init = Window.__init__

    def planted(self, *arguments, **keywords):
        init(self, *arguments, **keywords)
        plant(self)

    monkeypatch.setattr(Window, "__init__", planted)


@pytest.mark.slow
def test_a_rollback_goes_back_to_the_checkpoint(config, tmp_path, infinite, capsys):
    summary = run(config("rolled", "run.on_nonfinite=rollback", "schedule=constant", "ema.decay=0"))
    assert summary["step"] == 6
    assert summary["recovery"] == {"skipped": 0, "rollbacks": 1}
    said = capsys.readouterr().out
    assert "update 4 is not finite, at micro-step 1 of 2 in the loss" in said
    assert "in the loss and" not in said, "its gradient is 0: what is stale on the host is not looked at"
    assert "back to update 3 with another order and 0.5 of the rate (rollback 1)" in said
    trained = records_of(tmp_path / "rolled", "train")
    assert [record["step"] for record in trained] == [1, 2, 3, 4, 5, 6]
    rate = trained[0]["learning_rate"]
    assert [record["learning_rate"] for record in trained] == [rate] * 3 + [rate / 2] * 3


@pytest.mark.slow
def test_what_is_skipped_too_often_is_divergence(config, infinite):
    with pytest.raises(DivergedError, match="update 4 is not finite"):
        run(config("skipped", "run.on_nonfinite=skip", "run.max_nonfinite=2", "schedule=constant"))


# ---- what is evaluated, and what others see --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_best_state_is_tested(config, whole, tmp_path):
    (tested,) = records_of(whole, "test")
    evaluated = run(config("whole", "job=evaluate", f"run.dir={whole.parent}"))
    for name in ("loss", "accuracy"):
        assert evaluated["test"][name] == pytest.approx(tested[name], rel=1e-6)


@pytest.mark.slow
def test_both_runtimes_evaluate_alike(config, whole):
    """The averages of the weights, the classes and the worst mistakes."""
    by_jax, by_tensorflow = (
        run(config("whole", "job=evaluate", f"run.dir={whole.parent}", f"device.runtime={runtime}"))
        for runtime in ("jax", "tensorflow")
    )
    assert by_jax["test"]["loss"] == pytest.approx(by_tensorflow["test"]["loss"], rel=1e-6)
    assert by_jax["test"]["accuracy"] == by_tensorflow["test"]["accuracy"]
    assert by_jax["classes"] == by_tensorflow["classes"]
    assert len(by_jax["mistakes"]) > 0
    for one, other in zip(by_jax["mistakes"], by_tensorflow["mistakes"], strict=True):
        assert [one.pop(name) for name in MEASURED] == pytest.approx([other.pop(name) for name in MEASURED], rel=1e-4)
        assert one == other


@pytest.mark.slow
def test_hooks_see_the_newest_weights(config, tmp_path):
    seen = {}

    def note(state):
        seen[state.step] = [each.numpy() for each in state.model.trainable_variables]

    add_hook(note, every=1, on="update")
    run(config("hooked", "schedule=constant"))
    saved = state_of(tmp_path / "hooked")
    assert list(seen) == [1, 2, 3, 4, 5, 6]
    assert not np.array_equal(seen[5][0], seen[6][0])
    assert all(any(np.array_equal(value, each) for each in saved.values()) for value in seen[6])


# ---- from one runtime to the other -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_moves_between_the_runtimes_and_says_so(config, tmp_path, capsys):
    moved = ("precision=float64", "schedule=constant")
    run(config("moved", *moved, "device.runtime=tensorflow", steps=2))
    assert "from here on" not in capsys.readouterr().out
    run(config("moved", *moved, steps=4))
    assert "device.runtime=jax from here on; it was tensorflow\n" in capsys.readouterr().out
    run(config("moved", *moved, "device.runtime=tensorflow", steps=6))
    assert "device.runtime=tensorflow from here on; it was jax\n" in capsys.readouterr().out
    run(config("stayed", *moved, "device.runtime=tensorflow"))
    found, expected = state_of(tmp_path / "moved"), state_of(tmp_path / "stayed")
    for name, value in expected.items():
        if not name.startswith("best_"):  # it was evaluated more often
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_an_operation_that_xla_lacks_is_refused(config, monkeypatch):
    init = Window.__init__

    def planted(self, *arguments, **keywords):
        init(self, *arguments, **keywords)
        kept = self.loss_function
        self.loss_function = lambda labels, logits: tf.py_function(kept, [labels, logits], logits.dtype)

    monkeypatch.setattr(Window, "__init__", planted)
    with pytest.raises(ConfigError, match=r"XLA can't compile this model: .*; use device.runtime=tensorflow") as error:
        run(config("odd"))
    assert error.value.exit_code == 2
