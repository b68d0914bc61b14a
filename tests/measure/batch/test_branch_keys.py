"""The keys of the branches, what is refused before any runs, and the copy of the checkpoint that they begin with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accumtrain.config.check import check_config
from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError, ConfigError, DataError
from accumtrain.measure.batch import beginning as beginnings
from accumtrain.measure.batch import children
from accumtrain.measure.batch.beginning import Beginning, copy_checkpoint
from accumtrain.measure.batch.branches import Branch, find_beta2, list_branches
from accumtrain.measure.batch.children import find_end, tell_progress
from accumtrain.measure.batch.job import count_examples
from accumtrain.measure.batch.results import make_rows, read_result
from accumtrain.optim.schedules import ConstantConfig
from accumtrain.process.child import ChildResult
from accumtrain.runs.checkpoint_store import CheckpointStore, Saved
from accumtrain.runs.files import write_json
from accumtrain.runs.names import folder_of
from tests.manifests import FACTS

SMALL = ("job=batch", "model=lenet5", "data=synthetic", "optim=adam", "batch_size=64", "accum.steps=4", "run.name=one")
JOB = ("job=batch", "model=lenet5", "run.name=one")
Branches = Callable[..., dict[str, Branch]]


@pytest.fixture
def branches(compose: Callable[..., Config], tmp_path: Path) -> Branches:
    """The branches of a small run after update 40, by batch, factor and order; the rate there is 0.01."""

    def make(*more: str, **found: Any) -> dict[str, Branch]:
        fields = {"rate": 0.01, "loss": 1.0, "split": "val", "epoch_examples": 1000, "replicas": 1, "checksum": "one"}
        fields["batch"] = 64
        began = Beginning(run=tmp_path, saved=Saved(40, tmp_path / "step-40"), **(fields | found))
        config = compose(*SMALL, *more)
        made = list_branches(config, began, count_examples(config, began), tmp_path)
        for branch in made:
            check_config(branch.config)
        return {f"{branch.batch} {branch.factor:g} {branch.order}": branch for branch in made}

    return make


def test_each_batch_has_its_steps_and_its_updates(branches: Branches) -> None:
    found = branches()
    assert list(found) == ["16 1 0", "16 1 1", "64 1 0", "64 1 1", "256 1 0", "256 1 1"]
    configs = [found[f"{batch} 1 0"].config for batch in (16, 64, 256)]
    assert [config.accum.steps for config in configs] == [1, 4, 16]
    assert [config.train.steps for config in configs] == [40 + 64, 40 + 16, 40 + 4]
    assert [config.eval.every for config in configs] == [8, 2, 1]
    assert {config.schedule.kind for config in configs} == {"constant"}
    assert [found[f"16 1 {order}"].config.run.seed for order in (0, 1)] == [0, 1]


@pytest.mark.parametrize(("rule", "power"), [("sqrt", 0.5), ("linear", 1.0), ("none", 0.0)])
def test_the_rate_follows_the_rule_and_the_factor(rule: str, power: float, branches: Branches) -> None:
    found = branches(f"batch_test.rule={rule}", "batch_test.rates=[1,2]", "batch_test.seeds=1")
    assert found["256 2 0"].config.optim.lr == pytest.approx(0.01 * 2 * 4**power)
    assert found["16 1 0"].config.optim.lr == pytest.approx(0.01 / 4**power)


def test_the_second_moment_forgets_as_many_examples(branches: Branches) -> None:
    found = branches("ema.decay=0.9", told=3.0)
    for batch in (16, 256):
        config = found[f"{batch} 1 0"].config
        assert find_beta2(config, 3.0) == pytest.approx(0.999 ** (batch / 64))
        assert (config.optim.beta2, config.optim.beta1, config.ema.decay) == (0.999, 0.9, 0.0)
        assert 2 ** (-batch * 3 / config.ema.half_life) == pytest.approx(0.9 ** (batch / 64))
    assert found["64 1 0"].config.optim.half_life is None, "its own batch changes nothing"


def test_a_half_life_of_the_run_stays(branches: Branches) -> None:
    found = branches("optim.half_life=5000", told=1.0)
    assert {branch.config.optim.half_life for branch in found.values()} == {5000}
    assert find_beta2(found["16 1 0"].config, 1.0) == pytest.approx(2 ** (-16 / 5000))


def test_of_a_ramp_the_batch_at_the_checkpoint_counts(branches: Branches) -> None:
    found = branches("batch_ramp={0.5:256}", "batch_test.seeds=1", "batch_test.batches=[16,64,256]", batch=256)
    assert {str(branch.config.batch_ramp) for branch in found.values()} == {"{}"}
    assert [branch.config.optim.lr for branch in found.values()] == pytest.approx([0.0025, 0.005, 0.01])
    assert find_beta2(found["16 1 0"].config, 1.0) == pytest.approx(0.999 ** (16 / 256))


@pytest.mark.parametrize("optim", ["sgd", "adafactor"])
def test_other_optimizers_keep_their_keys(optim: str, branches: Branches) -> None:
    found = branches(f"optim={optim}")
    kept = {str(replace(branch.config.optim, lr=None)) for branch in found.values()}
    assert len(kept) == 1
    assert find_beta2(found["16 1 0"].config, 1.0) is None


def test_the_name_is_another_one_as_soon_as_the_branch_is(branches: Branches) -> None:
    first = branches()
    names = {branch.name for branch in first.values()}
    assert len(names) == len(first)
    assert {branch.name for branch in branches("run.dir=elsewhere", "batch_test.warmup=7").values()} == names
    assert {branch.name for branch in branches("batch_test.seeds=3").values()} > names, "these are not made again"
    for changed in (("optim.beta1=0.8",), ("batch_test.examples=2048",), ("device=cpu",), ("data.train_examples=80",)):
        assert not {branch.name for branch in branches(*changed).values()} & names, changed
    assert not {branch.name for branch in branches(checksum="two").values()} & names


def test_nothing_of_a_branch_goes_to_services_or_ends_it_early(branches: Branches) -> None:
    (config, *_) = [branch.config for branch in branches("train.patience=1", "log.noise=true").values()]
    assert (config.job, config.log.tracker, config.log.noise, config.train.patience) == ("train", "none", False, None)
    assert config.run.resume == "force"


def test_examples_are_whole_updates_of_every_batch(branches: Branches) -> None:
    assert {branch.config.train.steps for branch in branches("batch_test.examples=300").values()} == {72, 48, 42}
    odd = branches("batch_test.batches=[16,48,64]", "batch_test.examples=100")
    assert {branch.examples for branch in odd.values()} == {192}, "so all are trained on the same"
    with pytest.raises(ConfigError, match="null: an epoch of 100: fewer examples than an update of the largest"):
        branches(epoch_examples=100)


# ---- refusals ----


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("batch_test.batches=[0,64]", "batch_test.batches[0]=0: must be at least 1"),
        ("batch_test.batches=[]", "nothing to try; give some, such as batch_test.batches=[64,256]"),
        ("batch_test.batches=[64,64]", "64 is there twice, and each is tried once; give different ones, such as"),
        (
            "batch_test.batches=[64]",
            "nothing to be compared with; give two or more, such as batch_test.batches=[64,256]",
        ),
        ("batch_test.batches=[a,b]", "batch_test.batches[0]=a: must be a whole number"),
        ("batch_size=30", "batch_size=30 is no whole number; give the batches, such as batch_test.batches=[30,60,120]"),
        ("accum.steps=4 batch_test.batches=[16,40]", "not divisible by the 16 examples that the run computes at once"),
        ("batch_test.rates=[]", "batch_test.rates=[]: there is nothing to try; give some"),
        ("batch_test.rates=[0,1]", "batch_test.rates[0]=0.0: must be above 0"),
        ("batch_test.examples=100", "of the largest batch takes, 256; give batch_test.examples=2048"),
        ("optim=adafactor optim.lr=null", "give batch_test.rule=none batch_test.rates=[1.0]"),
        ("accum.reduction=sum", "add accum.reduction=mean run.resume=force"),
        ("model=resnet20 batch_test.batches=[1,4]", "resnet20 can't train on 1 at once"),
        (
            "device=cpu device.virtual=2 batch_test.batches=[7,64]",
            "7 is not divisible by the 2 replicas; nearest: 6, 8",
        ),
        ("device=multiworker", "job=batch runs in one process"),
    ],
)
def test_branches_that_cannot_be_compared_are_refused(keys: str, message: str, refused: Callable[..., str]) -> None:
    assert message in refused(*JOB, *keys.split(" "))


@pytest.mark.parametrize(
    "keys",
    [
        "batch_size=30 batch_test.batches=[30,60,120]",
        "accum.steps=4 batch_test.batches=[16,32]",
        "optim=adafactor optim.lr=null batch_test.rule=none batch_test.rates=[1.0]",
        "batch_test.batches=[4096,64] batch_test.examples=32768",
    ],
)
def test_the_remedies_help(keys: str, command: Callable[..., Any], fake_job: Callable[..., list[Config]]) -> None:
    seen = fake_job(lambda config: None, "batch")
    assert command(*JOB, *keys.split(" ")).code == 0
    assert len(seen) == 1


def examined(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    """Let the child that looks at the checkpoint find these facts."""
    facts = {
        "loss": 1.0,
        "split": "val",
        "factor": 1.0,
        "epoch_examples": 9,
        "batch": 64,
        "replicas": 1,
        "told": 1.0,
    }
    monkeypatch.setattr(beginnings, "run_in_child", lambda *_: ChildResult(0, facts | found, ""))


def test_a_run_whose_rate_has_come_to_0_has_no_branches(
    compose: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = compose(*SMALL, f"run.dir={tmp_path}", "train.epochs=25")
    write_checkpoint(tmp_path / "one", 40)
    for factor in (0.0, 0.001):  # at the end of a cosine, and shortly before it
        examined(monkeypatch, factor=factor)
        with pytest.raises(ConfigError, match=r"after update 40 the rate is 0.* times optim.lr.*add train\.epochs=50,"):
            beginnings.find_beginning(config, tmp_path / "job")
    with pytest.raises(ConfigError, match="train the run beyond its warm-up, or give the rate"):
        beginnings.find_beginning(replace(config, schedule=ConstantConfig(warmup=9000)), tmp_path / "job")
    examined(monkeypatch, factor=0.25)
    assert beginnings.find_beginning(config, tmp_path / "job").rate == 0.25 * config.optim.lr


def test_a_factor_on_a_rate_of_the_optimizer_is_refused(
    compose: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = compose(*SMALL[:3], "optim=adafactor", "optim.lr=null", "run.name=one", f"run.dir={tmp_path}")
    write_checkpoint(tmp_path / "one", 40)
    examined(monkeypatch, factor=0.5)
    with pytest.raises(ConfigError, match=r"has the factor 0\.5 on .* add schedule=constant run\.resume=force"):
        beginnings.find_beginning(config, tmp_path / "job")


# ---- the copy of the checkpoint, and the children ----


def write_checkpoint(run: Path, step: int) -> Saved:
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)

    def write(prefix: str) -> None:
        Path(f"{prefix}.data").write_text(f"weights of {step}")

    return CheckpointStore(run / "checkpoints").write(step, write, lambda prefix: None, FACTS)


def test_a_damaged_checkpoint_of_the_run_is_passed_over_and_stays(
    compose: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    config = compose(*SMALL, f"run.dir={tmp_path}")
    older, newer = (write_checkpoint(tmp_path / "one", step) for step in (3, 6))
    (newer.path / "state.data").write_text("weightz of 6")
    examined(monkeypatch)
    assert beginnings.find_beginning(config, tmp_path / "job").step == 3
    assert "step-6 is damaged" in capfd.readouterr().err
    assert newer.exists, "it is not put into quarantine"
    (older.path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint of this run is whole"):
        beginnings.find_beginning(config, tmp_path / "job")


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_is_whole_and_made_once(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = write_checkpoint(tmp_path / "one", 3)
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    copy_checkpoint(saved, tmp_path / "branch")
    (copy,) = CheckpointStore(tmp_path / "branch" / "checkpoints").newest_first()
    copy.check()
    assert (copy.path / "state.data").samefile(saved.path / "state.data") == links
    newer = write_checkpoint(tmp_path / "branch", 5)
    CheckpointStore(tmp_path / "branch" / "checkpoints").keep(lambda saved: saved[:1])
    copy_checkpoint(saved, tmp_path / "branch")
    assert CheckpointStore(tmp_path / "branch" / "checkpoints").newest_first() == [newer]
    saved.check()


def test_the_end_of_a_branch_is_in_its_summary(branches: Branches) -> None:
    branch = branches()["16 1 0"]
    assert find_end(branch.config) is None
    branch.folder.mkdir()
    for status, step, ended in (("preempted", 104, None), ("completed", 103, None), ("completed", 104, "completed")):
        write_json(branch.folder / "summary.json", {"status": status, "step": step})
        assert find_end(branch.config) == ended
    write_json(branch.folder / "summary.json", {"status": "diverged", "step": 50})
    assert find_end(branch.config) == "diverged"
    assert tell_progress(branch.config) == f"{branch.name}: before its first update"


@pytest.mark.parametrize(("code", "ended"), [(0, "completed"), (4, "diverged"), (6, "no memory"), (-9, "no memory")])
def test_a_branch_that_diverges_or_runs_out_of_memory_ends_alone(
    code: int, ended: str, branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        children, "run_in_child", lambda *_: ChildResult(code, {"message": "as it is"} if code else {}, "")
    )
    assert children.train_in_child(branches()["16 1 0"].config) == ended


def test_other_errors_of_a_branch_end_the_job(branches: Branches, monkeypatch: pytest.MonkeyPatch) -> None:
    config = branches()["16 1 0"].config
    monkeypatch.setattr(children, "run_in_child", lambda *_: ChildResult(3, {"message": "no such file"}, ""))
    with pytest.raises(DataError, match="no such file"):
        children.train_in_child(config)
    monkeypatch.setattr(children, "run_in_child", lambda *_: ChildResult(1, {}, ""))
    folder_of(config).mkdir()
    (folder_of(config) / "output.txt").write_text("ZeroDivisionError")
    with pytest.raises(RuntimeError, match=r"ended with code 1:\nfrom .*output.txt:\nZeroDivisionError"):
        children.train_in_child(config)


def write_records(branch: Branch, *records: dict[str, Any]) -> None:
    branch.folder.mkdir(exist_ok=True)
    lines = [json.dumps({"epoch": 1.0, "seconds": 2.0, **record}) for record in records]
    (branch.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_the_curve_of_a_branch_is_that_of_its_records(branches: Branches, tmp_path: Path) -> None:
    branch = branches()["256 1 0"]
    began: Any = SimpleNamespace(step=40, loss=1.0, split="val")
    evaluated = [{"step": step, "split": "val", "loss": 1.0 - step / 100} for step in (40, 42, 44)]
    write_records(branch, *evaluated, {"step": 41, "split": "train", "loss": 2.0, "examples_per_second": 9.0})
    write_json(branch.folder / "summary.json", {"status": "completed", "step": 44, "memory": {"rss_peak_bytes": 7}})
    found = read_result(branch, "completed", began)
    assert [(point.examples, round(point.loss, 2)) for point in found.curve] == [(0, 1.0), (512, 0.58), (1024, 0.56)]
    assert (found.ended, found.speeds, found.peak_bytes) == ("completed", (9.0,), 7)


def test_a_branch_without_a_loss_at_its_end_is_not_ranked(branches: Branches) -> None:
    branch = branches()["256 1 0"]
    began: Any = SimpleNamespace(step=40, loss=1.0, split="val", told=1.0)
    write_records(branch, {"step": 44, "split": "val", "loss": None})
    found = read_result(branch, "completed", began)
    assert found.ended == "no loss"
    assert [row.loss for row in make_rows([found], began)] == [None]
