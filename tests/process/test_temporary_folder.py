"""Folders for a while: gone afterwards, and what is told where there can be none."""

import errno
import os
import tempfile
from types import SimpleNamespace

import pytest

from accumtrain.errors import CheckpointError
from accumtrain.process import temporary_folder as module
from accumtrain.process.temporary_folder import temporary_folder


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_it_is_there_for_a_while(tmp_path):
    with temporary_folder("probe") as folder:
        assert folder.parent == tmp_path
        assert folder.name.startswith("accumtrain-probe-")
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_a_place_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    told = r"no temporary folder can be made: No such file.*; set TMPDIR to a folder"
    with pytest.raises(CheckpointError, match=told):
        temporary_folder("probe").__enter__()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full(number, tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    words = os.strerror(number)
    told = rf"accumtrain-probe-.* can't be written: {words}; set TMPDIR to a folder"
    with pytest.raises(CheckpointError, match=told), temporary_folder("probe"):
        raise OSError(number, words)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_elsewhere():
    for error in (OSError(errno.ENOSPC, "no space", "/elsewhere/file"), OSError(errno.ENOSPC, "no space")):
        with pytest.raises(OSError, match="no space") as raised, temporary_folder("probe"):
            raise error
        assert raised.value is error


def test_other_errors_are_those_of_the_work():
    with pytest.raises(ConnectionResetError), temporary_folder("probe"):
        raise ConnectionResetError
