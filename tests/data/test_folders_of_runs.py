"""Folders of runs that lie among the data are none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumtrain.data.config import FolderConfig, TableConfig, TextsConfig
from accumtrain.data.local_files import list_named_images
from accumtrain.data.open_data import open_data
from accumtrain.data.source import Dataset
from accumtrain.fields import TOKENS
from accumtrain.runs.folder import open_folder
from accumtrain.runs.names import LOCK, make_results_folder
from tests.data.conftest import png


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(12):
        file = tmp_path / "photos" / ("cat", "dog", "owl")[number % 3] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(number))
    rows = [f"{('cat', 'dog', 'owl')[number % 3]}/{number}.png,{number % 3}" for number in range(12)]
    (tmp_path / "photos" / "labels.csv").write_text("\n".join(["image,label", *rows]))
    return tmp_path / "photos"


def open_photos(photos: Path) -> Dataset:
    data = open_data(FolderConfig(path=str(photos)), 0)
    table = open_data(TableConfig(path=str(photos / "labels.csv")), 0)
    assert not [note for note in table.notes if "left out" in note]
    assert len(list_named_images(str(photos), "predict.input")[0]) == 12
    assert data.class_names == ["cat", "dog", "owl"]
    return data


@pytest.mark.parametrize("run_dir", ["runs", "cat/runs", "."])
@pytest.mark.parametrize("job", ["train", "plan"])
def test_the_folder_of_a_job_is_no_data(compose, photos, monkeypatch, run_dir, job):
    monkeypatch.chdir(photos)
    config = compose(f"run.dir={run_dir}", "run.name=mine", f"job={job}")
    with open_folder(config) as folder:
        open_photos(photos)
        (folder / "results.png").write_bytes(png(99))
    with open_folder(config):
        (folder / "confusion.png").write_bytes(png(98))
    data = open_photos(photos)
    assert sum(split.size for split in data.splits.values()) == 12
    with open_folder(compose(f"run.dir={run_dir}", "run.name=other", f"job={job}")) as unused:
        assert unused.is_dir()
    assert not unused.exists(), "a folder in which nothing was written goes"
    assert folder.is_dir()


@pytest.mark.parametrize("place", ["answers", "out/answers", "cat/answers"])
def test_a_new_folder_of_results_is_no_data_and_an_old_one_stays_what_it_is(photos, place):
    make_results_folder(photos / place)
    (photos / place / "predictions.csv").write_text("file,class")
    (photos / place / "drawn.png").write_bytes(png(99))
    make_results_folder(photos / "owl")
    open_photos(photos)


def test_a_folder_of_an_earlier_version_is_no_data(photos):
    (photos / "old" / "mine").mkdir(parents=True)
    (photos / "old" / "mine" / LOCK).touch()
    (photos / "old" / "mine" / "results.png").write_bytes(png(99))
    open_photos(photos)


def test_a_folder_of_runs_is_no_text(compose, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    with open_folder(compose("run.name=mine")) as folder:
        (folder / "metrics.jsonl").write_text("{}")
        data = open_data(TextsConfig(path="."), 0, TOKENS)
    assert sum(split.size for split in data.splits.values()) == 6
