"""The folder of a sweep: what jobs leave in it, and whose sweep goes on."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from accumtrain.cli.sweep import folder as sweep_folder
from accumtrain.cli.sweep.table import JobOutcome
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.runs import files
from tests.programs import start_python


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv(sweep_folder.VARIABLE, "")  # so that what is set is undone


def outcome(ended_with):
    return JobOutcome(["batch_size=32"], "train", "run/summary.json", 5, ended_with)


def test_outcomes_come_back_in_the_order_of_the_jobs(tmp_path):
    with sweep_folder.open_sweep_folder(tmp_path / "runs") as folder:
        assert os.environ[sweep_folder.VARIABLE] == str(folder)
        sweep_folder.write_outcome(folder, 10, outcome(3))
        sweep_folder.write_outcome(folder, 2, outcome(None))
        assert sweep_folder.read_outcomes(folder) == [outcome(None), outcome(3)]
        assert (sweep_folder.read_outcome(folder, 10), sweep_folder.read_outcome(folder, 3)) == (outcome(3), None)
        sweep_folder.write_outcome(folder, 2, outcome(0))
        assert sweep_folder.read_outcomes(folder) == [outcome(0), outcome(3)]
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_job_may_leave_its_outcome_while_the_sweep_ends(tmp_path, monkeypatch):
    """The command that started it has seen the outcome, and removed the folder before the job was told."""
    synced = files.sync_to_disk

    def sync_late(path):
        sweep_folder._close(path)
        synced(path)

    monkeypatch.setattr(files, "sync_to_disk", sync_late)
    folder = tmp_path / ".sweep-1"
    folder.mkdir()
    sweep_folder.write_outcome(folder, 0, outcome(75))
    sweep_folder.write_outcome(folder, 1, outcome(75))  # nobody reads it
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_writes_while_the_folder_is_closed(tmp_path, monkeypatch):
    """The folder stays, as logs are in it, and the file that was to become the outcome goes."""

    def sync(descriptor):
        sweep_folder._close(folder)

    folder = tmp_path / ".sweep-1"
    (folder / "logs").mkdir(parents=True)
    monkeypatch.setattr(files.os, "fsync", sync)
    sweep_folder.write_outcome(folder, 0, outcome(75))
    assert list(folder.iterdir()) == [folder / "logs"]


def test_an_outcome_that_can_not_be_written_is_an_error(tmp_path):
    with sweep_folder.open_sweep_folder(tmp_path) as folder:
        (folder / "000000.json" / "in the way").mkdir(parents=True)
        for _ in range(2):  # while the sweep runs, and once it has ended
            with pytest.raises(CheckpointError, match=r"000000\.json can't be written"):
                sweep_folder.write_outcome(folder, 0, outcome(0))
            sweep_folder.end_sweep(folder)
        shutil.rmtree(folder / "000000.json")


def test_jobs_go_on_until_the_end(tmp_path):
    with sweep_folder.open_sweep_folder(tmp_path) as folder:
        assert sweep_folder.is_running(folder)
        sweep_folder.end_sweep(folder)
        assert not sweep_folder.is_running(folder)
    assert not sweep_folder.is_running(folder)


@pytest.fixture
def gone():
    """A process that has ended."""
    with start_python("-c", "") as process:
        return process


def test_the_folder_of_a_sweep_that_was_killed_is_removed_by_the_next(tmp_path, gone):
    for name, owner in (("a", socket.gethostname()), ("b", socket.gethostname()), ("c", "another")):
        (tmp_path / f".sweep-{name}").mkdir()
        (tmp_path / f".sweep-{name}" / sweep_folder.OWNER).write_text(f"{owner} {gone.pid}")
    (tmp_path / ".sweep-b" / ".submitit").mkdir()
    (tmp_path / ".sweep-ending").mkdir()  # its jobs save their state
    with sweep_folder.open_sweep_folder(tmp_path):
        pass
    assert {each.name for each in tmp_path.iterdir()} == {".sweep-b", ".sweep-c", ".sweep-ending"}
    assert [each.name for each in (tmp_path / ".sweep-b").iterdir()] == [".submitit"]


@pytest.mark.parametrize("owner", [PermissionError, ""])
def test_a_folder_that_can_not_be_read_stays(tmp_path, monkeypatch, owner):
    """It is of another user, or of a sweep that has just made it."""
    left = tmp_path / ".sweep-left"
    left.mkdir()
    (left / sweep_folder.OWNER).write_text("")
    exists = Path.exists

    def refuse(self, **options):
        if self.parent == left and owner:
            raise owner
        return exists(self, **options)

    monkeypatch.setattr(Path, "exists", refuse)
    with sweep_folder.open_sweep_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
    assert left.is_dir()


def test_a_full_disk_leaves_no_folder(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweep_folder.Path, "write_text", full)
    with pytest.raises(ConfigError, match="can't be used: No space left on device; choose another one"):
        sweep_folder.open_sweep_folder(tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_jobs_do_not_go_on_without_their_command(tmp_path, gone):
    with sweep_folder.open_sweep_folder(tmp_path) as folder:
        (folder / sweep_folder.OWNER).write_text(f"{socket.gethostname()} {gone.pid}")
        assert not sweep_folder.is_running(folder)
        (folder / sweep_folder.OWNER).write_text(f"another-{socket.gethostname()} {gone.pid}")
        assert sweep_folder.is_running(folder), "what runs on another machine can't be seen from here"


def test_logs_of_a_launcher_stay(tmp_path, capsys):
    with sweep_folder.open_sweep_folder(tmp_path) as folder:
        (folder / ".submitit").mkdir()
        sweep_folder.write_outcome(folder, 0, outcome(0))
    assert [each.name for each in folder.iterdir()] == [".submitit"]
    assert str(folder) in capsys.readouterr().out


def test_run_dir_that_is_a_file(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=r"runs can't be used: File exists; choose another one"):
        sweep_folder.open_sweep_folder(tmp_path / "runs").__enter__()
