"""The training job: stopping and continuing is the same as never stopping."""

import json
import os
import re
import shutil
import signal
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.arithmetic import Epochs
from accumtrain.dispatch import run
from accumtrain.engine import runtime, step
from accumtrain.errors import CheckpointError, ConfigError, DivergedError, Preempted
from accumtrain.runs.run import Run
from accumtrain.train import train
from accumtrain.train.checkpoint import Checkpoints
from accumtrain.train.metrics import Position
from tests.train.conftest import assert_same_tensors, json_of, records_of, tensors_of

BN = ("model=resnet20", "model.units=[1,1]", "model.filters=[16,16,32]", "data.image_size=8")  # small, batch norm


def test_epochs_are_rounded_once(compose):
    """11 updates of 20 of 216 images are 1.01852 epochs, which four decimals first would make 1.018."""
    config = compose("batch_size=20", "accum.steps=1")
    position = Position(Epochs(config, 216))
    position.advance(11)
    assert f"{position.epoch:.4g}" == "1.019"
    assert position.shown_epoch == "1", "the update that ends the epoch"
    position.advance(12)
    assert position.shown_epoch == "1.111"


@pytest.fixture(scope="module")
def config_in(compose):
    """A small run across an epoch boundary (48 examples, 6 updates of 16), shuffled and augmented."""

    def of(folder, name, *overrides, model=BN):
        return compose(
            *("data=synthetic", *model, "data.train_examples=48", "data.test_examples=20", "data.augment=crop_flip"),
            *("optim=adam", "batch_size=16", "accum.steps=2", "train.steps=6", "ema.decay=0.9"),
            *("eval.every=2", "log.every=1", "checkpoint.every=100", f"run.dir={folder}", f"run.name={name}"),
            *overrides,
        )

    return of


@pytest.fixture
def config(config_in, tmp_path):
    return partial(config_in, tmp_path)


class Killed(BaseException):
    pass


def die():
    raise Killed


def after_a_record(monkeypatch, is_it, act):
    """Act right after a record is written."""
    log = Run.log

    def log_and_act(self, record):
        log(self, record)
        if is_it(record):
            act()

    monkeypatch.setattr(Run, "log", log_and_act)


def stop_after(monkeypatch, split, step):
    """Send SIGTERM to this process right after a record is written."""
    place = {"split": split, "step": step}
    stop = partial(os.kill, os.getpid(), signal.SIGTERM)
    after_a_record(monkeypatch, lambda record: place.items() <= record.items(), stop)


@pytest.fixture(scope="module")
def trained(config_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run(config_in(folder, "whole"))
    return folder / "whole"


@pytest.fixture
def whole(trained, tmp_path):
    """The run that was never stopped: a copy for each test."""
    return shutil.copytree(trained, tmp_path / "whole")


def assert_same(one, other, step=6):
    assert records_of(one) == records_of(other)
    assert_same_tensors(*(tensors_of(each / f"checkpoints/step-{step}") for each in (one, other)))


@pytest.mark.parametrize(
    ("split", "step"),
    [("train", 3), pytest.param("train", 4, marks=pytest.mark.slow), pytest.param("test", 2, marks=pytest.mark.slow)],
)
def test_stopping_and_continuing_changes_no_bit(config, whole, tmp_path, monkeypatch, split, step):
    with monkeypatch.context() as patch:
        stop_after(patch, split, step)
        with pytest.raises(Preempted, match=f"update {step} of 6") as stopped:
            run(config("stopped"))
    assert stopped.value.exit_code == 75
    assert json_of(tmp_path / "stopped")["status"] == "preempted"
    summary = run(config("stopped"))
    assert (summary["status"], summary["step"]) == ("completed", 6)
    assert_same(whole, tmp_path / "stopped")


@pytest.mark.slow
@pytest.mark.parametrize("then", [(), ("accum.dtype=float64",), ("log.noise=false",)], ids=["same", "sums", "off"])
def test_the_noise_scale_is_continued(config, tmp_path, monkeypatch, then):
    with monkeypatch.context() as patch:
        stop_after(patch, "train", 3)
        with pytest.raises(Preempted):
            run(config("stopped", "log.noise=true"))
    assert run(config("stopped", "log.noise=true", *then))["status"] == "completed"
    if not then:
        run(config("whole", "log.noise=true"))
        assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_the_noise_of_a_single_micro_batch_is_refused(config):
    with pytest.raises(ConfigError, match=r"log.noise=true: accum.steps=1 on one device.*use accum.steps=2"):
        run(config("alone", "log.noise=true", "accum.steps=1"))


@pytest.mark.slow
def test_a_run_killed_after_a_checkpoint_repeats_what_it_lost(config, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        after_a_record(patch, lambda record: record["step"] == 5, die)
        with pytest.raises(Killed):
            run(config("killed", "checkpoint.every=3"))
    assert records_of(tmp_path / "killed")[-1]["step"] == 5
    run(config("killed"))
    assert_same(whole, tmp_path / "killed")


@pytest.mark.slow
def test_continuing_with_other_accumulation_and_more_updates(config, tmp_path, capsys):
    run(config("longer", "train.steps=2", model=LENET))
    assert "from here on" not in capsys.readouterr().out
    summary = run(config("longer", "train.steps=3", "accum.steps=4", model=LENET))
    assert "accum.steps=4 from here on; it was 2\n" in capsys.readouterr().out
    assert (summary["step"], summary["micro_batch_size"]) == (3, 4)
    assert [record["step"] for record in records_of(tmp_path / "longer", "train")] == [1, 2, 3]


def test_a_warmup_as_long_as_the_run_is_told_at_its_start(config, capsys):
    short = ("train.steps=1", "eval.every=1", "schedule.warmup=2")
    run(config("short", *short, model=("model=lenet5", "data.image_size=8")))
    assert capsys.readouterr().err.replace("\n", " ") == (
        "warning: schedule.warmup=2: the run has 1 update, and the rate rises to its end; set schedule.warmup below 1, "
        "or train.steps above 2 "
    )


def test_a_finished_run_is_left_alone(config, whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file() and path.name != ".lock"}
    summary = run(config("whole"))
    assert summary["status"] == "completed"
    told = capsys.readouterr().out
    assert "nothing left to do" in told
    assert re.search(r"\n[\d.]+ s in all, [\d,.]+ examples/s while training; results in ", told)
    assert told.count("chosen on test examples") == told.count("give a new run data.val_fraction=0.1") == 1
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_files_of_a_run(whole):
    summary = json_of(whole)
    expected = {"batch_size": 16, "micro_batch_size": 8, "accum_steps": 2, "replicas": 1, "epoch": 2.0}
    assert expected.items() <= summary.items()
    assert summary["params"] > 0
    memory, kinds = summary["memory"], summary["memory_by_kind"]
    counts = {"tensor_peak_bytes", "tensor_static_bytes", "rss_peak_bytes"}
    assert set(memory) == {*counts, "peak_by_compiler"}
    assert memory["tensor_static_bytes"] + kinds["activations"] == memory["tensor_peak_bytes"]
    assert kinds["activations"] > 0
    assert [(record["step"], record["examples"]) for record in records_of(whole, "test")] == [(2, 20), (4, 20), (6, 20)]
    assert (whole / "results.png").read_bytes().startswith(b"\x89PNG")
    assert list((whole / "tensorboard/train").glob("events*"))


def test_the_best_is_chosen_on_validation_and_tested_once(config, tmp_path, capsys):
    summary = run(config("validated", "data.val_fraction=0.25"))
    validated = records_of(tmp_path / "validated", "val")
    (tested,) = records_of(tmp_path / "validated", "test")
    best = max(validated, key=lambda r: (r["accuracy"], -r["loss"]))
    assert [(r["step"], r["examples"]) for r in validated] == [(2, 12), (4, 12), (6, 12)]
    assert summary["best_on"] == "val"
    assert summary["best"] == {name: best[name] for name in ("loss", "accuracy")}
    told = capsys.readouterr().out
    assert f"the best state, of update {best['step']}, epoch {best['epoch']:.4g}: test loss" in told
    assert "chosen on test examples" not in told
    assert summary["test"] == {name: tested[name] for name in ("loss", "accuracy")}
    evaluation = run(config("validated", "data.val_fraction=0.25", "job=evaluate"))
    assert {name: evaluation["test"][name] for name in ("loss", "accuracy")} == summary["test"]


@pytest.mark.slow
def test_patience_ends_a_run_and_the_same_command_changes_nothing(config, tmp_path, capsys):
    overrides = ("patient", "optim.lr=1e-30", "train.patience=1", "model.norm=group")  # nothing is learned
    summary = run(config(*overrides))
    assert (summary["status"], summary["step"]) == ("completed", 4)
    assert "stopping early after update 4, epoch 1.333: 1 evaluation was no better" in capsys.readouterr().out
    assert run(config(*overrides))["step"] == 4


def test_evaluate_gives_the_accuracy_training_gave(config, whole, tmp_path):
    result = run(config("whole", "job=evaluate"))
    best = max(records_of(whole, "test"), key=lambda r: (r["accuracy"], -r["loss"]))
    assert result["step"] == best["step"]
    assert all(result["test"][name] == best[name] for name in ("loss", "accuracy"))
    with pytest.raises(CheckpointError, match="train first"):
        run(config("never-trained", "job=evaluate"))


def test_divergence_keeps_the_state_before_it(config, tmp_path):
    diverging = ("optim=sgd", "optim.lr=1e30", "ema.decay=0", "model.norm=group")
    with pytest.raises(DivergedError, match="was not made") as diverged:
        run(config("diverging", *diverging))
    assert diverged.value.exit_code == 4
    summary = json_of(tmp_path / "diverging")
    assert summary["status"] == "diverged"
    assert 0 < summary["step"] < 6
    values = tensors_of(tmp_path / f"diverging/checkpoints/step-{summary['step']}")
    assert all(np.all(np.isfinite(value)) for name, value in values.items() if "model" in name)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(config, whole, tmp_path, capsys):
    run(config("damaged", "checkpoint.every=1"))
    checkpoints = tmp_path / "damaged/checkpoints"
    shutil.rmtree(checkpoints / "best/step-6", ignore_errors=True)
    data = checkpoints / "step-6/state.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    run(config("damaged"))
    assert "step-6 is damaged: state.data-00000-of-00001 is not the file that was written" in capsys.readouterr().err
    assert (checkpoints / "quarantine/step-6/reason.txt").exists()
    assert_same(whole, tmp_path / "damaged")


@pytest.mark.slow
def test_a_run_without_a_whole_checkpoint_does_not_begin_again(config, tmp_path):
    run(config("damaged", "train.steps=1", model=LENET))
    for index in (tmp_path / "damaged").rglob("state.index"):
        index.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint of this run is whole.*Put back a copy") as error:
        run(config("damaged", "train.steps=2", model=LENET))
    assert error.value.exit_code == 5
    with pytest.raises(CheckpointError, match="holds the metrics of a run, but no checkpoint"):
        run(config("damaged", "train.steps=2", model=LENET))


def test_batch_that_does_not_divide_writes_nothing(config, tmp_path):
    message = "batch_size=16 is not divisible by accum.steps=3 x 1 replica; nearest: 15, 18"
    with pytest.raises(ConfigError, match=message):
        run(config("uneven", "accum.steps=3"))
    assert not (tmp_path / "uneven").exists()


@pytest.mark.slow
def test_keras_model_trains_with_a_keras_optimizer(config):
    keras = ("model=keras", "model.name=MobileNetV3Small", "data.image_size=32")
    lion = ("optim=keras", "optim.name=Lion", "optim.lr=1e-4", "train.steps=2")
    assert run(config("keras", *lion, model=keras))["status"] == "completed"


LENET = ("model=lenet5", "data.image_size=12")
TOGETHER = ("train.steps=16", "log.every=8", "eval.every=16", "checkpoint.every=16", "ema.decay=0")


@pytest.fixture
def calls(monkeypatch):
    """The number of updates in each call of several; such calls are tried however slow the machine is."""
    counts = []

    class Counting(step.Step):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            compiled = self.updates
            self.updates = lambda batches, count: counts.append(int(count)) or compiled(batches, count)

    monkeypatch.setattr(runtime, "Step", Counting)
    monkeypatch.setattr(step, "SECONDS_PER_CALL", 1e3)
    return counts


@pytest.mark.slow
def test_updates_together_are_the_updates_apart(config, tmp_path, monkeypatch, calls):
    run(config("together", *TOGETHER, model=LENET))
    assert max(calls) > 2
    calls.clear()
    monkeypatch.setattr(train, "WORTH_TOGETHER", float("inf"))
    run(config("apart", *TOGETHER, model=LENET))
    assert not calls
    assert_same(tmp_path / "apart", tmp_path / "together", 16)


def test_a_full_disk_is_named_and_leaves_what_was_saved(config, tmp_path, monkeypatch):
    def full(self, prefix):
        raise tf.errors.ResourceExhaustedError(None, None, "part-00000; No space left on device")

    run(config("full", "train.steps=1", model=LENET))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_write_files", full)
        with pytest.raises(CheckpointError, match=r"update 2 .*no space left.*continues from step-1"):
            run(config("full", "train.steps=2", model=LENET))
    assert run(config("full", "train.steps=2", model=LENET))["step"] == 2


def test_a_run_killed_at_its_very_end_writes_its_summary(config, tmp_path, capsys):
    whole = run(config("late", "train.steps=2", model=LENET))
    file = tmp_path / "late/summary.json"
    without = {key: value for key, value in whole.items() if key != "skipped_windows"}
    for written in (whole | {"status": "preempted", "step": 1}, without):
        file.write_text(json.dumps(written))
        assert run(config("late", "train.steps=2", model=LENET))["step"] == 2
        assert json_of(file.parent).keys() == whole.keys()
        assert json_of(file.parent)["status"] == "completed"
    assert "update 2" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_best_state_is_on_disk_before_its_test_is_noted(config, tmp_path, monkeypatch):
    """A run that was stopped in an evaluation, continued, and killed after that evaluation."""
    with monkeypatch.context() as patch:
        patch.setattr(train.Evaluator, "__call__", lambda self, stop, report: None)
        with pytest.raises(Preempted, match="after update 2"):
            run(config("best", model=LENET))
    with monkeypatch.context() as patch:
        after_a_record(patch, lambda record: record["split"] == "test", die)
        patch.setattr(Checkpoints, "__exit__", lambda self, *_: None)  # nothing is written any more
        with pytest.raises(Killed):
            run(config("best", model=LENET))
    assert (tmp_path / "best/checkpoints/best/step-2/manifest.json").exists()
