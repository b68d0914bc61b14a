"""Hostile files are refused by name: none is read wrongly, none ends in a traceback or a hang."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from accumtrain.config.schema import Config
from accumtrain.data.config import DataConfig, FolderConfig, NpzConfig, TfrecordConfig
from accumtrain.data.open_data import open_data
from accumtrain.dispatch import run
from accumtrain.errors import AccumtrainError, DataError
from accumtrain.runs.config import RunConfig
from tests.data import hostile
from tests.data.conftest import FEATURES, assert_refused, example, png

SECONDS = 60  # of a job; a hang
NPZ_WORDS = {  # of the error; that of all others names the file
    "more than there is": r"labels can't be read .*: save it again",
    "a text": r"images can't be read \(.*magic string is not correct",
    "encrypted": r"images can't be read \(File .* is encrypted",
}
FAST_NPZ = ("header of 9000 brackets", "header of a huge shape", "labels without number", "another place", *NPZ_WORDS)
FAST_RECORDS = ("a length beyond 63 bits", "a nest of messages", "a huge WebP", "no number")


@pytest.fixture(autouse=True)
def no_hang():
    def stop(number, frame):
        pytest.fail(f"hangs for {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def check(data: DataConfig, tmp_path: Path) -> AccumtrainError:
    """The error with which job=check ends."""
    with pytest.raises(AccumtrainError) as refused:
        run(Config(job="check", data=data, run=RunConfig(dir=str(tmp_path / "runs"), name="one")))
    return refused.value


def test_how_many_there_are():
    assert hostile.COUNT >= 70


def test_images(make_folder, tmp_path):
    """All of them at once: those that are whole are read, the others are named."""
    root = make_folder(classes=("ant", "bee"), count=3)
    names = hostile.write_images(root / "ant")
    error = check(FolderConfig(path=str(root), image_size=8), tmp_path)
    assert isinstance(error, DataError), error
    bad = {Path(example["name"]).name for example in error.result["bad"]["examples"]}
    assert bad == set(names) - hostile.READ
    assert sum(error.result[split]["examples"] for split in ("train", "test")) == 6 + len(hostile.READ)


def marked(names: dict, fast: tuple[str, ...]) -> list:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", marked(hostile.NPZ, FAST_NPZ))
def test_arrays(tmp_path, name):
    file = tmp_path / "mine.npz"
    hostile.NPZ[name](file)
    with pytest.raises(DataError, match=rf"mine\.npz.*{NPZ_WORDS.get(name, '')}") as refused:
        open_data(NpzConfig(path=str(file)), seed=0)
    assert len(str(refused.value)) < 500 + 2 * len(str(file)), "words, not the content of the file"


def test_arrays_are_read_for_comparison(tmp_path):
    """The file that the others are made of is whole."""
    hostile.pack(hostile.PIXELS)(tmp_path / "mine.npz")
    assert open_data(NpzConfig(path=str(tmp_path / "mine.npz")), seed=0).num_classes == 2


def test_a_bomb_is_not_unpacked_before_its_labels_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "mine.npz"
    images = hostile.npy(hostile.described(f"({2**20}, 16, 16, 1)"), bytes(2**28))
    with hostile.zipfile.ZipFile(file, "w", hostile.zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        packed.writestr("images.npy", images)
        packed.writestr("labels.npy", hostile.array(np.zeros([2**20, 2, 2], np.uint8)))
    del images
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("nothing may be read"))
    assert_refused(NpzConfig(path=str(file)), r"labels has the shape \[1048576, 2, 2\]")


@pytest.mark.parametrize("name", marked(hostile.RECORDS, FAST_RECORDS))
def test_records(tmp_path, name):
    """The second record of the file to train on."""
    good = example({"image": png(1), "label": 0})
    (tmp_path / "train").write_bytes(hostile.record(good) + hostile.RECORDS[name])
    (tmp_path / "test").write_bytes(hostile.record(good))
    paths = {"path": str(tmp_path / "train"), "test_path": str(tmp_path / "test")}
    error = check(TfrecordConfig(**paths, **FEATURES, num_classes=3, image_size=8), tmp_path)
    assert isinstance(error, DataError), error
    told = str(error) if error.result is None else error.result["bad"]["examples"][0]["name"]
    assert f"record 1 of {tmp_path}/train" in told or "train is truncated or not a TFRecord file: record 1" in told
