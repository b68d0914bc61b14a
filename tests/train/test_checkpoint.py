"""Checkpoints of a run: whole or not there, the best of them, and their files."""

import dataclasses
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError
from accumtrain.models.config import KerasModelConfig
from accumtrain.optim.config import AdafactorConfig, SgdConfig
from accumtrain.runs import checkpoint_store
from accumtrain.runs.checkpoint_store import Saved
from accumtrain.tasks.config import METRICS, MetricEntry
from accumtrain.train import checkpoint
from accumtrain.train.checkpoint import NICENESS, PATIENCE, Checkpoints, TensorReader, restore_model
from accumtrain.train.config import BestBy
from tests.engine.small import all_variables, bottleneck_revnet, examples, lenet, resnet20, revnet38, train, window_for
from tests.manifests import FACTS

MB = 2**20


def test_a_check_reads_a_megabyte_at_a_time(tmp_path, monkeypatch):
    """It runs beside an update, at whose peak even 20 MB are 8 % of a RevNet-56's."""
    written = [tf.Variable(tf.zeros([100_000])) for _ in range(10)] + [tf.Variable(tf.zeros([1_000_000]))]
    prefix = tf.train.Checkpoint(written=written).write(str(tmp_path / "state"))
    restore, together = tf.raw_ops.RestoreV2, []

    def noted(**arguments):
        tensors = restore(**arguments)
        together.append([tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors])
        return tensors

    monkeypatch.setattr(tf.raw_ops, "RestoreV2", noted)
    TensorReader()(prefix)
    assert all(len(sizes) == 1 or sum(sizes) <= MB for sizes in together)
    assert sorted(size for sizes in together for size in sizes if size > 1000) == [400_000] * 10 + [4_000_000]


RESTORE = """
import sys
from pathlib import Path

from accumtrain.devices.config import CpuConfig
from accumtrain.process import environment

environment.prepare(CpuConfig())
import keras
import numpy as np
import tensorflow as tf

from accumtrain.train.checkpoint import load_into
from accumtrain.runs.checkpoint_store import Saved

make = {"tensorflow": tf.Variable, "keras": keras.Variable}[sys.argv[1]]
values = [np.arange(number, number + 2**20, dtype=np.float32) for number in range(20)]  # 4 MB each
variables = [make(tf.zeros([2**20])) for _ in values]
for variable, value in zip(variables, values):
    variable.assign(tf.zeros([2**20]) + value)
checkpoint = tf.train.Checkpoint(variables=variables)
saved = Saved(3, Path(sys.argv[2]))
saved.path.mkdir()
checkpoint.write(saved.prefix)
for variable in variables:
    variable.assign(tf.zeros([2**20]))

before = tf.config.experimental.get_memory_info("CPU:0")["current"]
tf.config.experimental.reset_memory_stats("CPU:0")
load_into(checkpoint, saved)
print(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
for variable, value in zip(variables, values):
    np.testing.assert_array_equal(variable.numpy(), value)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensorflow", "keras"])
def test_a_restore_takes_no_more_than_the_variables(tmp_path, kind):
    """A run that fills its memory must fit when it is continued, too, and TensorFlow reads all values at once."""
    printed = subprocess.check_output([sys.executable, "-c", RESTORE, kind, str(tmp_path / "step-3")], text=True)
    assert int(printed) < 8 * MB, "two of twenty variables"


def small_window():
    return window_for(resnet20(units=(1, 1)), SgdConfig(lr=0.1), (8, 8, 1))


@pytest.fixture
def window():
    return small_window()


@pytest.fixture
def checkpoints(tmp_path, window):
    with Checkpoints(tmp_path, window, keep=9, facts=FACTS.copy) as opened:
        yield opened


@pytest.fixture
def priorities(checkpoints, monkeypatch):
    """The niceness with which each checkpoint was written, each in `seconds` more than it takes."""
    noted, seconds = [], [0.0]
    write = checkpoints._write_files

    def slowly(prefix):
        write(prefix)
        noted.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        time.sleep(seconds[0])

    monkeypatch.setattr(checkpoints, "_write_files", slowly)
    return noted, seconds


def save(checkpoints, times):
    for _ in range(times):
        checkpoints.step.assign_add(1)
        save_now(checkpoints)


def save_now(checkpoints):
    checkpoints.save()
    checkpoints.wait()


def test_a_state_found_as_the_best_only_is_saved_among_the_last(checkpoints):
    """As after a kill between the two. The best one will be replaced."""
    checkpoints.step.assign(7)
    checkpoints.save_if_best({"loss": 0.5, "accuracy": 0.9})
    checkpoints.wait()
    assert not (checkpoints.directory / "step-7").exists()
    assert checkpoints.restore()["step"] == 7
    save_now(checkpoints)
    assert (checkpoints.directory / "step-7/manifest.json").exists()
    shutil.rmtree(checkpoints.directory / "best")
    assert checkpoints.restore()["step"] == 7


EVALUATIONS = [(0.5, 0.7), (0.9, 0.8), (0.1, 0.7), (0.9, 0.8), (0.8, 0.8), (float("nan"), 0.9), (0.8, 0.8)]
BEST = [1, 2, 5]  # those that were the best so far


def test_the_best_state_is_that_of_the_best_accuracy_then_of_the_lowest_loss(checkpoints):
    for step, (loss, accuracy) in enumerate(EVALUATIONS, 1):
        checkpoints.step.assign(step)
        assert checkpoints.save_if_best({"loss": loss, "accuracy": accuracy}) is (step in BEST), step
    checkpoints.wait()
    assert [folder.name for folder in (checkpoints.directory / "best").glob("step-*")] == ["step-5"]
    assert checkpoints.best == {"loss": 0.8, "accuracy": 0.8}


def test_a_model_is_restored_as_it_was_best(checkpoints):
    """Or as it was last, where there was no evaluation yet."""
    window = small_window()
    bias = next(variable for variable in window.variables_ if len(variable.shape) == 1)
    learned = checkpoints._checkpoint.model.trainable_variables
    saved = next(variable for variable in learned if variable.shape == bias.shape)
    for step, value in enumerate((1.0, 2.0, 3.0), 1):
        checkpoints.step.assign(step)
        saved.assign(tf.fill(saved.shape, value))
        if step == 2:
            checkpoints.save_if_best({"loss": 0.5, "accuracy": 0.9})
        save_now(checkpoints)
        expected = min(value, 2.0)
        assert restore_model(checkpoints.directory, window.model, None)[0].step == expected
        np.testing.assert_array_equal(bias, np.full(bias.shape, expected))


@pytest.mark.parametrize(("place", "name"), [(Saved, "check"), (tf.train.Checkpoint, "read")])
def test_a_best_state_that_a_training_replaces_while_it_is_read(checkpoints, monkeypatch, capsys, place, name):
    def better(accuracy):
        checkpoints.step.assign_add(1)
        assert checkpoints.save_if_best({"loss": 0.5, "accuracy": accuracy})
        checkpoints.wait()

    def read_late(*arguments):
        if int(checkpoints.step) == 1:
            better(0.9)
        return read(*arguments)

    checkpoints.save()
    better(0.5)
    read = getattr(place, name)
    monkeypatch.setattr(place, name, read_late)
    saved, _ = restore_model(checkpoints.directory, small_window().model, None)
    assert saved.path.parts[-2:] == ("best", "step-2")
    assert capsys.readouterr().err == "", "nothing is damaged"


def test_a_checkpoint_that_is_gone_whenever_it_is_read(checkpoints, monkeypatch):
    save(checkpoints, 1)
    monkeypatch.setattr(Saved, "exists", False)
    (checkpoints.directory / "step-1/manifest.json").unlink()
    with pytest.raises(CheckpointError, match="step-1 changed while it was read: run the same command again"):
        checkpoints.restore()


@pytest.mark.parametrize("needed", [False, True])
def test_a_state_that_can_not_be_restored_any_more_is_no_new_one(checkpoints, monkeypatch, needed):
    """The checkpoints vanish when the first attempt has freed the variables, or before."""

    def read(*_):
        shutil.rmtree(checkpoints.directory / "step-1")
        raise tf.errors.NotFoundError(None, None, "no such file")

    if not needed:
        assert checkpoints.restore() is None
        save(checkpoints, 1)
        monkeypatch.setattr(tf.train.Checkpoint, "read", read)
    with pytest.raises(CheckpointError, match="are gone, which the run needs to go on"):
        checkpoints.restore(needed=needed)


def test_variables_that_belong_to_the_user_keep_their_values_if_they_can_not_be_restored(tmp_path, monkeypatch):
    def fail(*_):
        raise tf.errors.UnknownError(None, None, "the disk is gone")

    window = small_window()
    with Checkpoints(tmp_path, window, keep=9, facts=FACTS.copy, frees_first=False) as checkpoints:
        save_now(checkpoints)
        before = [variable.numpy() for variable in all_variables(window)]
        monkeypatch.setattr(tf.train.Checkpoint, "read", fail)
        for restore in (checkpoints.restore, checkpoints.restore_best):
            with pytest.raises(CheckpointError, match="the disk is gone"):
                restore()
    for variable, value in zip(all_variables(window), before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM"), None),
        (tf.errors.NotFoundError(None, None, "Key bias not found"), "belongs to another model or optimizer: Key bias"),
        (tf.errors.DataLossError(None, None, "checksum"), "changed while it was read"),
        (tf.errors.UnknownError(None, None, "the disk is gone"), "can't be read: the disk is gone"),
    ],
)
def test_what_goes_wrong_while_a_model_is_restored_is_told_as_what_it_is(checkpoints, monkeypatch, raised, told):
    def fail(*_):
        raise raised

    save(checkpoints, 1)
    monkeypatch.setattr(tf.train.Checkpoint, "read", fail)
    with pytest.raises(CheckpointError if told else tf.errors.ResourceExhaustedError, match=told):
        restore_model(checkpoints.directory, small_window().model, None)


ERRORS = [
    ({"loss": 0.5, "error": -2.0}, True),
    ({"loss": 0.4, "error": -1.0}, False),
    ({"loss": 0.4, "error": float("nan")}, False),
    ({"loss": 0.6, "error": -3.0}, True),
]


@pytest.mark.parametrize(
    ("chosen", "evaluations", "best"),
    [
        ([], [({"loss": 0.9}, True), ({"loss": 1.1}, False), ({"loss": 0.5}, True)], {"loss": 0.5}),
        (["error"], ERRORS, {"loss": 0.6, "error": -3.0}),
    ],
)
def test_the_first_metric_decides_in_its_direction_or_else_the_loss(tmp_path, monkeypatch, chosen, evaluations, best):
    monkeypatch.setitem(METRICS.entries, "error", MetricEntry("error", "none:none", higher_is_better=False))
    best_by = BestBy.of(Config().task, Config().loss, chosen, None, ["accuracy"])
    with Checkpoints(tmp_path, small_window(), keep=9, facts=FACTS.copy, best_by=best_by) as checkpoints:
        assert checkpoints.best is None
        for result, is_best in evaluations:
            assert checkpoints.save_if_best(result) is is_best, result
        assert checkpoints.best == best
        checkpoints.forget_best()
        assert checkpoints.best is None
        assert checkpoints.save_if_best(evaluations[0][0])


def test_what_could_not_be_written_is_told_by_the_next_save_and_at_the_end(tmp_path, monkeypatch):
    def full(prefix):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    opened = Checkpoints(tmp_path, small_window(), keep=9, facts=FACTS.copy)
    monkeypatch.setattr(opened, "_write_files", full)
    opened.save()
    opened.step.assign_add(1)
    with pytest.raises(CheckpointError, match=r"update 0 .*no space left.*nothing was saved before"):
        opened.save()
    opened.save()
    with pytest.raises(CheckpointError, match="update 1"), opened:
        pass


def test_the_best_is_known_again_after_a_restore(checkpoints, tmp_path):
    checkpoints.save_if_best({"loss": 0.5, "accuracy": 0.7})
    save_now(checkpoints)
    with Checkpoints(tmp_path, small_window(), keep=9, facts=FACTS.copy) as others:
        manifests = []
        assert others.best is None
        assert others.restore(manifests.append) == manifests[0]
        assert others.best == {"loss": 0.5, "accuracy": 0.7}
        assert not others.save_if_best({"loss": 0.6, "accuracy": 0.7})


def test_what_is_best_changes_after_the_state_before_is_written(checkpoints, monkeypatch):
    write = checkpoints._write_files

    def late(prefix):
        time.sleep(0.3)
        write(prefix)

    monkeypatch.setattr(checkpoints, "_write_files", late)
    checkpoints.save()
    checkpoints.step.assign_add(1)
    checkpoints.save_if_best({"loss": 0.5, "accuracy": 0.7})
    checkpoints.wait()
    shutil.rmtree(checkpoints.directory / "best")
    checkpoints.restore()
    assert checkpoints.best is None


def test_what_was_not_finished_is_deleted_before_a_restore(checkpoints):
    left = [checkpoints.directory / name for name in (".unfinished-9", "best/.unfinished-9")]
    for folder in left:
        folder.mkdir(parents=True)
    assert checkpoints.restore() is None
    assert not any(folder.exists() for folder in left)


@pytest.mark.parametrize("flips", [12, pytest.param(1200, marks=pytest.mark.slow)])
def test_a_flipped_bit_of_a_manifest_costs_one_checkpoint_and_nothing_else(window, checkpoints, flips):
    """The state is that of the checkpoint before, to the bit; the damaged one is in quarantine, unchanged."""
    save(checkpoints, 1)
    buffers = {id(buffer) for buffer in window.buffers}
    state = [variable for variable in all_variables(window) if id(variable) not in buffers]
    expected = [variable.numpy() for variable in state]
    place = checkpoints.directory / "step-2"
    for variable in state:
        variable.assign(tf.ones_like(variable) + variable)
    save_now(checkpoints)
    whole = (place / "manifest.json").read_bytes()
    for bit in random.Random(1).sample(range(8 * len(whole)), flips):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (place / "manifest.json").write_bytes(flipped)
        assert checkpoints.restore()["step"] == 1, bit
        for variable, value in zip(state, expected, strict=True):
            np.testing.assert_array_equal(variable, value)
        damaged = checkpoints.directory / "quarantine/step-2"
        assert (damaged / "manifest.json").read_bytes() == flipped
        (damaged / "reason.txt").unlink()
        damaged.rename(place)


def test_of_those_before_the_last_one_for_every_keep_hours_stays(tmp_path, monkeypatch):
    with Checkpoints(tmp_path, small_window(), keep=2, facts=FACTS.copy, keep_hours=2.0) as checkpoints:
        for hours in (0, 1, 2, 3, 4.5, 5, 6):
            monkeypatch.setattr(checkpoint_store.time, "time", lambda now=1.7e9 + 3600 * hours: now)
            save(checkpoints, 1)
    assert {folder.name for folder in tmp_path.glob("step-*")} == {f"step-{step}" for step in (1, 3, 5, 6, 7)}


def test_it_yields_while_nobody_waits(checkpoints, priorities, monkeypatch):
    monkeypatch.setattr(checkpoint, "PATIENCE", 60.0)
    save(checkpoints, 3)
    assert priorities[0] == [NICENESS] * 3
    assert len(list(checkpoints.directory.glob("step-*"))) == 3


def test_it_does_not_once_training_has_waited(checkpoints, priorities):
    noted, seconds = priorities
    own = os.getpriority(os.PRIO_PROCESS, 0)
    seconds[0] = 2 * PATIENCE
    save(checkpoints, 4)
    assert noted == [NICENESS, NICENESS, own, own], "the first one is slow anyway"
    assert len(checkpoints.pauses) == 4
    assert min(checkpoints.pauses) > PATIENCE, "what training has waited"
    assert len(list(checkpoints.directory.glob("step-*"))) == 4


POLICIES = {
    "revnet": (revnet38(units=(2, 1)), ("store", "recompute", "reverse")),
    "bottlenecks": (bottleneck_revnet(), ("store", "recompute", "reverse")),
    "resnet": (resnet20(units=(1, 1)), ("store", "recompute")),
    "lenet": (lenet(), ("store", "recompute")),
    "keras": (KerasModelConfig(name="MobileNet", args={"alpha": 0.25}), ("store", "recompute")),
}
SHAPE = (32, 32, 3)


def windows_of(kind):
    """A window of each policy."""
    config, policies = POLICIES[kind]
    configs = {policy: dataclasses.replace(config, memory=policy) for policy in policies}
    return {policy: window_for(each, AdafactorConfig(momentum=0.9), SHAPE) for policy, each in configs.items()}


def test_every_memory_policy_reads_the_checkpoints_of_the_others(tmp_path):
    windows = windows_of("revnet")
    for writer, saved in windows.items():
        for number, (_, variable) in enumerate(variables_of(saved)):
            variable.assign(tf.fill(variable.shape, tf.cast(number + len(writer), variable.dtype)))
        assert_each_reads(windows, writer, tmp_path / writer)


@pytest.mark.slow
@pytest.mark.parametrize("kind", POLICIES)
def test_every_memory_policy_goes_on_from_every_other_to_the_same_bits(tmp_path, kind):
    windows = windows_of(kind)
    for number, (writer, saved) in enumerate(windows.items()):
        train(saved, [examples(8, SHAPE, seed=number)], micro_steps=1)
        assert_each_reads(windows, writer, tmp_path / writer)
        for window in windows.values():
            train(window, [examples(8, SHAPE, seed=9)], micro_steps=1)
        expected = state_of(saved)
        for reader, window in windows.items():
            assert_same(state_of(window), expected, f"{reader} goes on from {writer}")


def assert_each_reads(windows, writer, folder):
    expected = state_of(windows[writer])
    with Checkpoints(folder, windows[writer], keep=1, facts=FACTS.copy) as checkpoints:
        checkpoints.save()
    for reader, window in windows.items():
        with Checkpoints(folder, window, keep=1, facts=FACTS.copy) as checkpoints:
            checkpoints.restore(needed=True)
        assert_same(state_of(window), expected, f"{reader} reads what {writer} has written")


def variables_of(window):
    return [*window.model.named.items(), *((slot.name, slot) for slot in window.optimizer.state)]


def state_of(window):
    return [(name, variable.numpy()) for name, variable in variables_of(window)]


def assert_same(found, expected, message):
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, value), (_, other) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, other, err_msg=f"{message}: {name}")
