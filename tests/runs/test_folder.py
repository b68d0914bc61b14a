"""The folder and the file of each job."""

from dataclasses import replace
from pathlib import Path

import pytest

from accumtrain.data.config import FolderConfig, NpzConfig
from accumtrain.runs.config import RunConfig
from accumtrain.runs.folder import LONGEST, job_folder, name_other_data, open_folder, result_file
from accumtrain.runs.run import Run


@pytest.mark.parametrize("job", ["check", "lr", "plan", "memory", "bench", "verify"])
def test_jobs_that_leave_no_run_have_one_place(job, compose):
    config = compose(f"job={job}", "run.name=lenet5-digits")
    assert job_folder(config) == Path(f"runs/trials/{job}-lenet5-digits")
    assert result_file(config) == job_folder(config) / f"{job}.json"


def test_names_of_trials_are_short_and_stay_apart(compose):
    names = {f"resnet20-photos-augment_shift-batch_size{size}" for size in (32, 64)} | {40 * "x"}
    found = {job_folder(compose("job=lr", f"run.name={name}")).name for name in names}
    assert len(found) == len(names)
    assert all(len(name) <= len("lr-") + LONGEST + len("-abcdef") for name in found)
    assert sum(name.startswith("lr-resnet20-photos-augment_shift-") for name in found) == 2


def test_other_jobs_write_where_the_run_is(compose):
    for job, folder in (("train", "runs/one"), ("evaluate", "runs/one"), ("report", "runs")):
        assert job_folder(compose(f"job={job}", "run.name=one")) == Path(folder)


def test_the_place_of_trials_is_removed_while_it_is_empty(compose, tmp_path):
    with open_folder(compose("job=plan", f"run.dir={tmp_path}", "run.name=one")) as folder:
        assert folder == tmp_path / "trials/plan-one"
    assert list(tmp_path.iterdir()) == []


def test_other_data_is_named(compose, tmp_path):
    config = replace(
        compose("job=evaluate"), data=FolderConfig(path="photos"), run=RunConfig(dir=str(tmp_path), name="one")
    )
    assert name_other_data(config) is None, "there is no run yet"
    with Run(config) as run:
        run.save_config(config)
    assert result_file(config) == tmp_path / "one/evaluation.json"
    assert result_file(replace(config, data=FolderConfig(path="photos", on_error="skip"))).name == "evaluation.json"
    for data, name in (
        (FolderConfig(path="new/test"), "new_test"),
        (FolderConfig(path="old/test"), "old_test"),
        (FolderConfig(path="my pets"), "my_pets"),
        (NpzConfig(path="new.npz"), "new.npz"),
        (FolderConfig(path="/"), "folder"),
    ):
        assert result_file(replace(config, data=data)) == tmp_path / f"one/evaluation-{name}.json"
        last = replace(config, data=data, state="last")
        assert result_file(last) == tmp_path / f"one/evaluation_last-{name}.json"


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("evaluate", "evaluation_last.json"),
        ("predict", "predict_last.json"),
        ("export", "export_last.json"),
        ("train", "summary.json"),
        ("report", "report.json"),
    ],
)
def test_results_of_the_last_state_have_names_of_their_own(job, name, compose):
    assert result_file(compose(f"job={job}", "run.name=one", "state=last")).name == name
