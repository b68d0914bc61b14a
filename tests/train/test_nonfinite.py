"""run.on_nonfinite: stop, skip, rollback; and nothing that is not finite is ever on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.dispatch import run
from accumtrain.engine import step
from accumtrain.engine.window import Window
from accumtrain.errors import DivergedError
from accumtrain.runs.contents import read_records


@pytest.fixture
def config(compose, tmp_path):
    def of(*overrides):
        return compose(
            "model=lenet5",
            "data=synthetic",
            "data.image_size=16",
            "data.train_examples=64",
            "data.test_examples=16",
            "batch_size=16",
            "accum.steps=2",
            "train.steps=6",
            "checkpoint.every=2",
            "optim=sgd",
            "optim.lr=0.01",
            f"run.dir={tmp_path}",
            "run.name=one",
            *overrides,
        )

    return of


@pytest.fixture
def planted(monkeypatch):
    """Makes the loss of some windows NaN: of the updates after so many, as often as `times` says."""

    def plant(*steps, times=1):
        left = tf.Variable(times, dtype=tf.int64)
        commit = Window.commit

        def with_nan(self):
            bad = tf.reduce_any(self.step == tf.constant(steps, tf.int64)) & (left > 0)
            self.loss.assign_add(tf.where(bad, float("nan"), 0.0))
            left.assign_sub(tf.cast(bad, tf.int64))
            return commit(self)

        monkeypatch.setattr(Window, "commit", with_nan)

    return plant


def tensors_on_disk(folder):
    for index in folder.rglob("state.index"):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        for name in reader.get_variable_to_shape_map():
            if "OBJECT_GRAPH" not in name and "best_loss" not in name:
                yield index.parent, name, reader.get_tensor(name)


def assert_all_finite(folder):
    found = list(tensors_on_disk(folder))
    assert found
    assert all(np.all(np.isfinite(value)) for _, _, value in found)


def test_stop_says_where_and_keeps_the_last_update(config, planted, tmp_path):
    planted(3)
    with pytest.raises(DivergedError, match=r"update 4 is not finite.*the state after update 3 is saved"):
        run(config())
    assert (tmp_path / "one/checkpoints/step-3").is_dir()
    assert_all_finite(tmp_path / "one")


def test_weights_that_became_infinite_are_not_saved(config, tmp_path):
    """The loss and the gradient are finite, the rate is not too large for float32, what it makes of the weights is."""
    with pytest.raises(DivergedError, match=r"update 1 left .* infinite or NaN.*is not saved") as error:
        run(config("optim.lr=3e38", "optim.momentum=0"))
    assert error.value.exit_code == 4
    assert [path.name for path in (tmp_path / "one/checkpoints").iterdir()] == ["step-0"]
    assert_all_finite(tmp_path / "one")
    assert json.loads((tmp_path / "one/summary.json").read_text())["status"] == "diverged"


def test_skip_counts_and_continues_with_the_next_examples(config, planted, tmp_path):
    planted(3)
    summary = run(config("run.on_nonfinite=skip"))
    assert summary["status"] == "completed"
    assert summary["recovery"] == {"skipped": 1, "rollbacks": 0}
    manifest = json.loads((tmp_path / "one/checkpoints/step-6/manifest.json").read_text())
    assert manifest["recovery"]["skipped"] == 1


@pytest.mark.slow
def test_skip_has_a_limit_in_a_row(config, planted):
    planted(3, times=3)
    with pytest.raises(DivergedError, match="update 4 is not finite"):
        run(config("run.on_nonfinite=skip", "run.max_nonfinite=2"))


@pytest.mark.slow
def test_a_run_that_skipped_continues_bit_for_bit(config, planted, tmp_path):
    planted(1)
    run(config("run.on_nonfinite=skip", "run.name=parts", "train.steps=4", "schedule=constant"))
    run(config("run.on_nonfinite=skip", "run.name=parts", "schedule=constant"))
    planted(1)
    run(config("run.on_nonfinite=skip", "run.name=whole", "schedule=constant"))
    one, other = (
        {name: value for folder, name, value in tensors_on_disk(tmp_path / run_name) if folder.name == "step-6"}
        for run_name in ("parts", "whole")
    )
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_rollback_goes_to_the_last_checkpoint_with_a_lower_rate(config, planted, tmp_path):
    planted(3)
    summary = run(config("run.on_nonfinite=rollback", "schedule=constant", "log.every=1"))
    assert summary["status"] == "completed"
    assert summary["recovery"] == {"skipped": 0, "rollbacks": 1}
    records = [each for each in read_records(tmp_path / "one") if each["split"] == "train"]
    assert [each["step"] for each in records] == [1, 2, 3, 4, 5, 6]
    assert [each["learning_rate"] for each in records] == pytest.approx([0.01] * 2 + [0.005] * 4)


@pytest.mark.slow
def test_rollback_has_a_limit(config, planted, tmp_path):
    planted(3, times=100)
    with pytest.raises(DivergedError):
        run(config("run.on_nonfinite=rollback", "run.max_nonfinite=3"))
    assert json.loads((tmp_path / "one/summary.json").read_text())["recovery"]["rollbacks"] == 3
    assert_all_finite(tmp_path / "one")


@pytest.mark.slow
def test_windows_with_updates_between_them_are_not_in_a_row(config, planted, monkeypatch):
    """Also when one call makes several updates and ends at the bad one."""
    monkeypatch.setattr(step, "SECONDS_PER_CALL", 1e3)
    planted(10)
    planted(16)
    several = ("train.steps=24", "log.every=24", "checkpoint.every=24", "eval.every=24")
    summary = run(config("run.on_nonfinite=skip", "run.max_nonfinite=1", *several))
    assert summary["recovery"]["skipped"] == 2


@pytest.mark.slow
def test_streams_that_leave_their_range_end_a_run_with_the_remedy(config, tmp_path):
    """Streams of 26 bits reach 16, and a rate of 5 brings some beyond. The remedy goes on after the last update."""
    small = ("model=revnet38", "model.units=[1,1]", "model.filters=[8,8,16]", "optim.lr=5")
    with pytest.raises(DivergedError, match="the state after update") as error:
        run(config(*small, "model.snap_bits=26"))
    done = json.loads((tmp_path / "one/summary.json").read_text())["step"]
    assert 0 < done < 6
    told = (
        "from -16 to 16 of numbers with model.snap_bits=26",
        "go on with model.snap_bits=22 run.name=one run.resume=force",
    )
    assert all(each in str(error.value) for each in told)
    assert run(config(*small, "model.snap_bits=22", "run.resume=force"))["step"] == 6
    steps = [each["step"] for each in read_records(tmp_path / "one") if each["split"] == "train"]
    assert steps == sorted(set(steps))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["revnet38", "revnet110", "revnet164"])
def test_streams_stay_in_range_at_the_full_rate_of_the_recipe(compose, tmp_path, model):
    """Without a warm-up they are largest in the first updates: those of RevNet-110 reach 139 here."""
    data = ("data=synthetic", "data.image_size=32", "data.train_examples=512", "data.test_examples=64")
    summary = run(
        compose(f"model={model}", *data, "batch_size=64", "accum.steps=2", "train.steps=8", f"run.dir={tmp_path}")
    )
    assert (summary["status"], summary["step"]) == ("completed", 8)
