"""A process that hangs ends, and says where; one that makes progress does not. The time that is left of a job."""

import pytest

from accumtrain.process import watchdog
from accumtrain.process.watchdog import Deadline, Watchdog
from tests.programs import run_python, start_python

PROGRAM = """
import ctypes, time
from pathlib import Path
from accumtrain.process.watchdog import Watchdog

def hang_in_c():
    ctypes.CDLL(None).sleep(60)

{before}
with Watchdog(0.5, Path({folder!r})) as watchdog:
    for number in range(30):
        watchdog.beat(f"update {{number}}")
    hang_in_c()
"""


@pytest.fixture
def hang(tmp_path):
    """End a program that hangs in C. Return what it says."""

    def run(before="", folder=tmp_path):
        ended = run_python("-c", PROGRAM.format(folder=str(folder), before=before), timeout=50)
        assert ended.returncode == 75
        return ended.stderr

    return run


def test_a_hang_ends_and_leaves_behind_where(hang, tmp_path):
    said = hang()
    (file,) = tmp_path.glob("hang-*.txt")
    assert said == (
        f"\nerror: no progress for 0.5 s (run.hang_timeout) in: update 29; {file} has the stack of each thread. The "
        "last checkpoint is intact: run the same command again to continue from it\n"
    )
    text = file.read_text()
    assert text.startswith("no progress for 0.5 s (run.hang_timeout) in: update 29\n")
    updates = [line.split("  ")[-1] for line in text.splitlines() if "  update " in line]
    assert updates == [f"update {number}" for number in range(10, 30)]
    assert "in hang_in_c" in text
    assert "most recent call first" in text


def test_a_disk_that_hangs_too_is_not_waited_for(hang, tmp_path):
    before = "import accumtrain.process.watchdog as module; module.LAST_WORK = 0.5\n"
    assert "no progress for 0.5 s" in hang(f"{before}Path.open = lambda *_, **__: time.sleep(60)")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(hang, tmp_path):
    said = hang(folder=tmp_path / "nowhere")
    assert "can't be written: No such file or directory" in said
    assert "in hang_in_c" in said


def test_nobody_reads_what_is_said(tmp_path):
    with start_python("-c", PROGRAM.format(folder=str(tmp_path), before="")) as process:
        process.stderr.close()
        assert process.wait(timeout=50) == 75


class Ticks:
    """An event that ends the watch after 100 ticks, and acts in each."""

    def __init__(self, action):
        self.action, self.count = action, 0

    def wait(self, seconds):
        self.count += 1
        self.action()
        return self.count == 100


@pytest.mark.parametrize(("beats", "ticks"), [(True, 100), (False, 4)])
def test_progress_is_no_hang(tmp_path, monkeypatch, beats, ticks):
    ends = []
    monkeypatch.setattr(watchdog, "end_now", lambda message, code: ends.append(code))
    watched = Watchdog(4.0, tmp_path)
    watched.beat("start")
    watched._over = Ticks(lambda: watched.beat("update") if beats else None)
    watched._watch()
    assert watched._over.count == ticks
    assert ends == ([] if beats else [75])
    assert len(list(tmp_path.iterdir())) == len(ends)


def test_it_can_be_turned_off(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog.threading.Thread, "start", lambda self: pytest.fail("a thread"))
    with Watchdog(0, tmp_path) as watched:
        watched.beat("update")


# ---- run.walltime ----


@pytest.fixture
def clock(monkeypatch):
    """A clock to set, in a process that started 100 s ago."""
    now = [0.0]
    monkeypatch.setattr(watchdog, "process_seconds", lambda: 100.0)
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("walltime", "now", "needed", "due"),
    [
        (160.0, 0.0, 30, False),
        (160.0, 20.0, 30, False),
        (160.0, 31.0, 30, True),
        (160.0, 31.0, 5, False),
        (None, 1e9, 1e9, False),
    ],
)
def test_a_deadline(clock, walltime, now, needed, due):
    left = Deadline(walltime)
    clock[0] = now
    assert left.due(needed) is due
