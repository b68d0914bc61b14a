"""Files are replaced as a whole or not at all, whatever ends the process that writes them."""

import errno
import json
import os
from pathlib import Path

import pytest

from accumtrain.errors import CheckpointError
from accumtrain.process.signals import StoppedBySignal
from accumtrain.runs import files
from accumtrain.runs.files import remove_unfinished, replacing, write_atomic, write_json
from accumtrain.runs.run import Run
from tests.programs import output_of, start_python, with_path

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("failing", "error", "message"),
    [
        (NO_SPACE, CheckpointError, r"no space is left to write .*summary\.json; free some"),
        (StoppedBySignal("SIGINT"), StoppedBySignal, "SIGINT"),
    ],
)
def test_a_full_disk_or_a_signal_leaves_the_old_file(tmp_path, monkeypatch, failing, error, message):
    def fail(descriptor):
        raise failing

    file = tmp_path / "summary.json"
    write_json(file, {"step": 1})
    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(error, match=message):
        write_json(file, {"step": 2})
    assert json.loads(file.read_text()) == {"step": 1}
    assert list(tmp_path.iterdir()) == [file], "nothing half-written is left"


def test_write_atomic_names_a_file_it_can_not_write(tmp_path):
    with pytest.raises(CheckpointError, match="missing/file can't be written: No such file or directory"):
        write_atomic(tmp_path / "missing" / "file", "text")


def test_text_is_utf8_whatever_the_locale(tmp_path):
    program = "import sys; from pathlib import Path; from accumtrain.runs.files import write_atomic; "
    program += "write_atomic(Path(sys.argv[1]), 'M\\u00fcller')"
    ascii_locale = with_path(PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C")
    output_of("-c", program, tmp_path / "file", env=ascii_locale)
    assert (tmp_path / "file").read_bytes() == "Müller".encode()


def written(folder, content):
    folder.mkdir()
    (folder / content).touch()
    return folder


@pytest.mark.parametrize("failing", [None, OSError(errno.EIO, "Input/output error"), StoppedBySignal("SIGINT")])
def test_a_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, failing):
    folder = written(tmp_path / "savedmodel", "old")
    rename = files.Path.rename

    def rename_or_fail(path, target):
        if failing is not None and target == folder and path.name.endswith(".savedmodel"):
            raise failing
        return rename(path, target)

    monkeypatch.setattr(files.Path, "rename", rename_or_fail)

    def replace():
        with replacing(folder) as unfinished:
            written(unfinished, "new")
            assert (folder / "old").exists(), "until the new one is whole"

    if failing is None:
        replace()
    else:
        with pytest.raises(CheckpointError if isinstance(failing, OSError) else StoppedBySignal):
            replace()
    assert [path.name for path in folder.iterdir()] == ["new" if failing is None else "old"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_is_there_at_every_moment(tmp_path, monkeypatch):
    file = tmp_path / "one.tflite"
    file.write_text("old")
    monkeypatch.setattr(files.Path, "unlink", lambda path, missing_ok=False: path != file or pytest.fail("removed"))
    with replacing(file) as unfinished:
        unfinished.write_text("new")
    assert file.read_text() == "new"


def test_a_file_takes_no_place_of_a_folder(tmp_path):
    folder = written(tmp_path / "results.png", "precious")
    with pytest.raises(CheckpointError, match=r"results\.png can't be written: Is a directory"):
        write_atomic(folder, "text")
    assert (folder / "precious").exists()


@pytest.fixture
def dead():
    """The number of a process that has ended."""
    with start_python("-c", "") as gone:
        return gone.pid


def test_what_a_killed_process_has_left_is_removed_with_the_next_training(compose, tmp_path, dead):
    config = compose(f"run.dir={tmp_path}", "run.name=one")
    names = [f".{dead}.summary.json", f".{dead}.savedmodel", f".{dead}.young", f".{os.getpid()}.mine", ".lock", "a.1.b"]
    (tmp_path / "one").mkdir()
    for name in names:
        place = tmp_path / "one" / name
        written(place, "asset") if name.endswith("savedmodel") else place.touch()
        if not name.endswith("young"):
            os.utime(place, (0, 0))
    with Run(config) as run:
        assert {path.name for path in run.path.iterdir()} == {*names[2:]}


def test_a_link_to_elsewhere_is_removed_alone(tmp_path, dead):
    folder = written(tmp_path / "elsewhere", "precious")
    (tmp_path / "one").mkdir()
    link = tmp_path / "one" / f".{dead}.savedmodel"
    link.symlink_to(folder)
    os.utime(link, (0, 0), follow_symlinks=False)
    remove_unfinished(tmp_path / "one")
    assert not link.is_symlink()
    assert (folder / "precious").exists()


def test_a_folder_that_was_put_aside_comes_back_if_nothing_took_its_place(tmp_path, dead):
    for name in (f".{dead}.one.before", f".{dead}.one", f".{dead}.other.before", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
        os.utime(tmp_path / name, (0, 0))
    remove_unfinished(tmp_path)
    found = {each.name: (each / "content").read_text() for each in tmp_path.iterdir()}
    assert found == {"one": f".{dead}.one.before", "other": "other"}


def test_what_vanishes_while_it_is_looked_at_is_no_error(tmp_path, dead, monkeypatch):
    (tmp_path / f".{dead}.evaluate.json").touch()

    def gone(self):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "lstat", gone)
    remove_unfinished(tmp_path)
