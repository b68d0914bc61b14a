"""Runs that are refused, that are continued all the same, and the words for both."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from accumtrain import dispatch
from accumtrain.cli.workers import start_workers
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError, DataError, Preempted
from accumtrain.process.program import own_program
from accumtrain.process.signals import JobSignals
from accumtrain.runs.run import Run
from accumtrain.train import train
from accumtrain.train.evaluator import Evaluator
from accumtrain.train.train import open_trainer
from tests.train.conftest import assert_same_tensors, json_of, records_of, tensors_of


def make_photos(folder):
    """Three classes of five images each, in one folder."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog", "owl")):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(0, 80, (16, 16, 3), np.uint8) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def overrides(photos, runs):
    return (
        *("model=lenet5", "data=folder", f"data.path={photos}", "data.val_fraction=0", "data.image_size=16"),
        *("batch_size=4", "accum.steps=2", "train.steps=2", "checkpoint.every=1", "log.every=1"),
        *(f"run.dir={runs}", "run.name=one"),
    )


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos")


@pytest.fixture
def config(compose, tmp_path, photos):
    def of(*more, data=photos):
        return compose(*overrides(data, tmp_path / "runs"), *more)

    return of


@pytest.fixture(scope="module")
def trained_once(compose, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(compose(*overrides(make_photos(folder / "photos"), folder / "runs")))
    return folder / "runs/one"


@pytest.fixture
def trained(trained_once, tmp_path):
    """A run of two updates: a copy for each test."""
    return shutil.copytree(trained_once, tmp_path / "runs/one")


def test_the_lock_is_taken_before_the_data_is_opened(config, monkeypatch):
    with Run(config()), pytest.raises(ConfigError, match="is training in"):
        run(config(data=Path("/nowhere")))


@pytest.mark.parametrize("first", ["choose_kernels", "settle_kept_activations"])
def test_the_lock_is_asked_for_before_anything_is_timed_or_probed(config, monkeypatch, first):
    monkeypatch.setattr(dispatch, first, None)
    with Run(config()), pytest.raises(ConfigError, match="is training in"):
        run(config())


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_links_are_not_followed(config, tmp_path, name):
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one" / name).symlink_to(target)
    with pytest.raises((ConfigError, CheckpointError)):
        run(config())
    assert target.read_text() == "mine"


@pytest.mark.slow
def test_a_picture_that_is_a_link_is_replaced(config, trained, tmp_path):
    target = tmp_path / "precious"
    target.write_text("mine")
    (trained / "results.png").unlink()
    (trained / "results.png").symlink_to(target)
    run(config("train.steps=3"))
    assert target.read_text() == "mine"
    assert not (trained / "results.png").is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [("cat", "zebra"), ("cat/0.png", "../deleted.png"), ("cat/0.png", "dog/9.png"), ("cat/0.png", "cat/7.png")],
    ids=["a class renamed", "deleted", "moved", "another order"],
)
def test_changed_data_is_refused_by_name(config, trained, photos, old, new):
    (photos / old).rename(photos / new)
    with pytest.raises(DataError, match=r"the data is not what .* was trained on: data\..* there and .* here"):
        run(config("train.steps=3"))
    assert run(config("train.steps=3", "run.resume=force"))["step"] == 3
    assert run(config("train.steps=4"))["step"] == 4  # the forced run is what it is now


@pytest.mark.slow
def test_data_may_move(config, trained, photos, tmp_path):
    moved = shutil.move(photos, tmp_path / "elsewhere")
    assert run(config("train.steps=3", data=moved))["step"] == 3


def test_another_batch_size_goes_on_by_force(config, trained):
    """Two updates of 4 of 12 images, then as many of 8 as make two epochs: 16 images more."""
    with pytest.raises(ConfigError, match="batch_size=4 there and 8 here"):
        run(config("train.steps=3", "batch_size=8"))
    longer = ("train.steps=null", "train.epochs=2", "batch_size=8")
    summary = run(config(*longer, "run.resume=force"))
    assert (summary["step"], summary["epoch"]) == (4, 2.0)
    assert summary["data"]["data.train.examples"] == 12
    assert [each["epoch"] for each in records_of(trained, "train")] == [1 / 3, 2 / 3, 4 / 3, 2.0]
    assert json_of(trained / "checkpoints/step-4", "manifest")["examples"] == 24, "the position in the stream"
    assert run(config(*longer))["step"] == 4, "nothing left to do"


@pytest.mark.slow
def test_other_data_goes_on_by_force_and_its_epochs_are_counted_beside_those_before(config, trained, photos):
    """2/3 of an epoch of 12 images; then of 6, of which 1 1/3 epochs are 8, so two updates of 4."""
    for name in ("cat", "dog", "owl"):
        (photos / name / "4.png").unlink()
        (photos / name / "3.png").unlink()
    summary = run(config("train.steps=null", "train.epochs=2", "run.resume=force"))
    assert summary["data"]["data.train.examples"] == 6
    assert (summary["step"], summary["epoch"]) == (4, 2.0)
    evaluated = run(config("job=evaluate"))
    assert evaluated["epoch"] == {2: 2 / 3, 3: 1.0, 4: 2.0}[evaluated["step"]]


DAMAGED = [b"", bytes(range(256)), b"- 1\n", b"batch_size: 8\n"]


@pytest.mark.parametrize("content", [None, *(pytest.param(content, marks=pytest.mark.slow) for content in DAMAGED)])
def test_the_checkpoint_says_what_was_learned_whatever_config_yaml_says(config, trained, content):
    file = trained / "config.yaml"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="batch_size=4 there and 8 here"):
        run(config("train.steps=3", "batch_size=8"))
    assert run(config("train.steps=3"))["step"] == 3
    assert "batch_size: 4" in file.read_text()


def test_a_checkpoint_of_another_run_is_refused(config, trained, tmp_path):
    run(config("run.name=two", "optim.lr=0.01", "train.steps=5"))
    shutil.copytree(tmp_path / "runs/two/checkpoints/step-5", trained / "checkpoints/step-5")
    with pytest.raises(ConfigError, match=r"learns something else: optim.lr=0.01 there .* give the values there"):
        run(config("train.steps=6"))


def test_all_checkpoints_gone_is_no_new_run(config, trained):
    shutil.rmtree(trained / "checkpoints")
    with pytest.raises(CheckpointError, match="holds the metrics of a run, but no checkpoint"):
        run(config("train.steps=3"))


@pytest.mark.slow
def test_a_kill_before_the_first_update_begins_again(config, tmp_path):
    """There is a checkpoint of update 0, so such a run is continued like any other."""
    with pytest.raises(Preempted, match="after update 0 of 2"):
        run(config("run.walltime=0:01"))  # a second: the process is older
    assert (tmp_path / "runs/one/checkpoints/step-0/manifest.json").exists()
    assert run(config())["step"] == 2


@pytest.mark.parametrize("own", [True, False], ids=["own", "foreign"])
def test_a_run_begins_with_drawn_weights_and_a_continued_one_draws_none(config, tmp_path, monkeypatch, own):
    """Foreign code may compute with its initial weights, also when a run is continued."""
    drawn, build = [], train.build_window

    def noted(*arguments, draws):
        drawn.append(draws)
        return build(*arguments, draws=draws)

    monkeypatch.setattr(train, "build_window", noted)
    monkeypatch.setattr(train, "is_own_run", lambda config: own)
    with JobSignals(), open_trainer(config("ema.decay=0.9")) as begun:
        kernels = [each for path, each in begun.window.model.named.items() if path.endswith("kernel")]
        assert all(np.any(kernel) for kernel in kernels)
        for average, weight in zip(begun.window.ema.averages, begun.window.variables_, strict=True):
            np.testing.assert_array_equal(average, weight)
        begun.checkpoints.save()
        begun.checkpoints.wait()
        saved = {path: each.numpy() for path, each in begun.window.model.named.items()}
    with JobSignals(), open_trainer(config("ema.decay=0.9")) as continued:
        for path, value in saved.items():
            np.testing.assert_array_equal(continued.window.model.named[path], value)
    assert drawn == [not own]


def test_a_run_whose_checkpoints_vanish_while_it_is_opened_does_not_begin_anew(config, tmp_path, monkeypatch):
    """Its weights are not drawn."""
    build = train.build_window

    def late(*arguments, **keywords):
        shutil.rmtree(tmp_path / "runs/one/checkpoints")
        return build(*arguments, **keywords)

    with pytest.raises(Preempted, match="after update 0 of 2"):
        run(config("run.walltime=0:01"))
    monkeypatch.setattr(train, "build_window", late)
    with pytest.raises(CheckpointError, match="one/checkpoints are gone"):
        run(config())


@pytest.mark.slow
def test_a_jump_of_the_rate_is_told(config, trained, tmp_path, capsys):
    run(config("train.steps=4"))
    told = capsys.readouterr().err
    assert "schedule=cosine now ends at update 4 instead of 2, so the rate goes on at 0.25 times optim.lr" in told
    assert told.count(". ") == 1, "two sentences"
    run(config("train.steps=4"))
    assert "times optim.lr" not in capsys.readouterr().err
    run(config("train.steps=6", "run.resume=force", "schedule=constant", "optim.lr=0.001"))  # the remedy
    assert "times optim.lr" not in capsys.readouterr().err
    (*_, last) = records_of(tmp_path / "runs/one", "train")
    assert (last["step"], last["learning_rate"]) == (6, pytest.approx(0.001))


@pytest.mark.slow
def test_damaged_images_are_skipped_listed_and_counted(config, photos, tmp_path):
    (photos / "cat/1.png").write_bytes((photos / "cat/1.png").read_bytes()[:60])
    summary = run(config("data.on_error=skip", "train.steps=6"))
    assert summary["skipped_examples"] == 1
    listed = json_of(tmp_path / "runs/one", "skipped")
    assert listed["count"] == 1
    assert listed["examples"][0]["name"].endswith("cat/1.png")
    run(config("data.on_error=skip", "train.steps=9"))
    assert json_of(tmp_path / "runs/one", "skipped") == listed


@pytest.mark.slow
def test_a_window_of_bad_examples_only_is_left_out(config, photos, tmp_path):
    (photos / "cat/1.png").write_bytes(b"")
    (photos / "cat/1.png").write_bytes((photos / "cat/2.png").read_bytes()[:60])
    summary = run(config("data.on_error=skip", "batch_size=1", "accum.steps=1", "train.steps=14"))
    assert summary["step"] == 14
    assert summary["recovery"]["skipped"] >= 1


def train_in_child(config_overrides, folder):
    command = [*own_program(), "model=lenet5", "train.steps=4", *config_overrides, f"run.dir={folder}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_run_continues_on_other_numbers_of_replicas_and_workers_with_the_same_bits(tmp_path):
    """With sums in float64, as each number of replicas adds them in another order. The micro-batch is always 16."""
    whole = ("accum.dtype=float64", "schedule=constant")
    train_in_child([*whole, "accum.steps=4", "run.name=whole"], tmp_path)
    train_in_child([*whole, "accum.steps=4", "train.steps=1", "run.name=moved"], tmp_path)
    mirrored = ("device=mirrored", "device.virtual=2")
    train_in_child([*whole, *mirrored, "accum.steps=2", "train.steps=2", "run.name=moved"], tmp_path)
    moved = ("accum.steps=2", "train.steps=3", f"run.dir={tmp_path}", "run.name=moved")
    workers = start_workers(2, ["model=lenet5", *whole, *moved])
    assert [worker.wait() for worker in workers] == [0, 0]
    train_in_child([*whole, "accum.steps=4", "run.name=moved"], tmp_path)
    one, other = (tensors_of(tmp_path / name / "checkpoints/step-4") for name in ("whole", "moved"))
    for name in [name for name in one if name.startswith("best_")]:  # the parts were evaluated more often
        del one[name], other[name]
    assert_same_tensors(one, other)


def test_the_summary_says_where_a_run_comes_from(config, trained):
    summary = json_of(trained)
    assert summary["provenance"]["versions"]["tensorflow"] == tf.__version__
    assert summary["provenance"]["host"] == os.uname().nodename
    assert summary["data"]["data.classes"] == ["cat", "dog", "owl"]


@pytest.mark.slow
def test_the_commit_is_that_of_the_start(config, monkeypatch):
    """Files of the repository may change while it trains."""

    def evaluate(self, *arguments, **more):
        monkeypatch.setattr(train, "provenance", lambda device: {"git": "at the end"})
        return whole(self, *arguments, **more)

    whole = Evaluator.__call__
    monkeypatch.setattr(Evaluator, "__call__", evaluate)
    monkeypatch.setattr(train, "provenance", lambda device: {"git": "at the start"})
    assert run(config())["provenance"] == {"git": "at the start"}


LENET = ("model=lenet5", "optim=sgd", "data=digits")
REVNET = ("model=revnet38", "model.units=[1]", "model.filters=[16,16]", "optim=adam", "data=digits")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "change", "fits"),
    [
        (LENET, "optim.lr=0.01", True),
        (LENET, "optim.weight_decay=0", True),
        (LENET, "optim.rates={segments/0/*:0.1}", True),
        (LENET, "schedule=constant", True),
        (LENET, "loss.label_smoothing=0.1", True),
        (LENET, "run.seed=1", True),
        (LENET, "data.val_fraction=0.2", True),
        (REVNET, "model.snap_bits=18", True),
        (REVNET, "optim.beta1=0.8", True),
        (LENET, "optim.momentum=0", False),
        (LENET, "optim=adam", False),
        (LENET, "ema.decay=0.9", False),
        (LENET, "precision=float16", False),
        (LENET, "model=resnet20", False),
        (LENET, "data=synthetic", False),
        (REVNET, "model.units=[2]", False),
        (REVNET, "model.norm=group", False),
        (REVNET, "optim=adafactor", False),
    ],
)
def test_force_is_advised_where_it_helps(compose, tmp_path, begun, change, fits):
    common = ("batch_size=16", "accum.steps=2", "log.every=1", f"run.dir={tmp_path}", "run.name=one")
    run(compose(*begun, *common, "train.steps=1"))
    changed = [each for each in begun if each.partition("=")[0] != change.partition("=")[0]]
    if change == "model=resnet20":
        changed = [each for each in changed if not each.startswith("model.")]
    with pytest.raises((ConfigError, CheckpointError)) as refused:
        run(compose(*changed, *common, change, "train.steps=2"))
    assert ("or run.resume=force" in str(refused.value)) == fits
    if fits:
        assert run(compose(*changed, *common, change, "train.steps=2", "run.resume=force"))["step"] == 2
    assert run(compose(*changed, *common, change, "train.steps=2", "run.name=another"))["step"] == 2
