"""A death or an error at each file-system call of a save by TensorFlow itself; a file system that is full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from accumtrain.runs.checkpoint_store import CheckpointStore, find_whole
from accumtrain.train.checkpoint import TensorReader
from tests.faults.strace import CALLS, calls_in

PROGRAM = Path(__file__).with_name("save_with_tensorflow.py")
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")]


class Saver:
    """A process that saves when it is told to."""

    def __init__(self, folder: Path, *prefix: str):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(PROGRAM), str(folder)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.thread = self.answer()

    def save(self) -> str:
        """How the save has ended; "" if the process has died."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    @contextmanager
    def traced(self, log: Path, *options: str) -> Iterator[None]:
        """Within this context, strace looks at the thread that writes."""
        command = ["strace", "-p", self.thread, "-o", str(log), "-e", f"trace={','.join(CALLS)}", *options]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert "attached" in tracer.stderr.readline()
        try:
            yield
        finally:
            tracer.terminate()
            tracer.communicate()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start():
    """Starts processes that save, and ends them."""
    started = []

    def begin(folder: Path, *prefix: str) -> Saver:
        started.append(Saver(folder, *prefix))
        return started[-1]

    yield begin
    for saver in started:
        saver.end()


def calls_of_a_save(saver: Saver, log: Path) -> list[tuple[str, int]]:
    """Each call of a save: its name, and its number among the calls of that name."""
    with saver.traced(log):
        assert saver.save() == "saved"
    return list(calls_in(log))


def assert_newest_is_whole(folder: Path, place: object) -> int:
    """Returns its update."""
    store = CheckpointStore(folder)
    store.sweep()
    found = store.newest_first()
    assert found, f"nothing left after {place}"
    saved, _ = find_whole(found)
    assert saved == found[0], f"a damaged one after {place}"
    TensorReader()(saved.prefix)
    return saved.step


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_an_error_of_each_call(start, tmp_path, error):
    folder, log = tmp_path / "run", tmp_path / "log"
    saver = start(folder)
    calls = calls_of_a_save(saver, log)
    assert len(calls) > 30
    before, failed = 3, 0
    for name, number in calls:
        with saver.traced(log, "-e", f"inject={name}:error={error}:when={number}"):
            answer = saver.save()
        assert answer, f"it has died of {error} in {name} {number}"
        now = assert_newest_is_whole(folder, (name, number))
        assert now >= before
        if answer != "saved":
            assert "could not save update" in answer or str(folder) in answer
            failed += 1
        before = now
        assert saver.save() == "saved", "once there is room again"
        before = assert_newest_is_whole(folder, (name, number))
    print(f"{len(calls)} calls, {failed} saves refused by {error}")
    assert failed > 15


def test_a_death_at_each_call(start, tmp_path):
    calls = calls_of_a_save(start(tmp_path / "counted"), tmp_path / "log")
    for name, number in calls:
        folder = tmp_path / f"{name}-{number}"
        saver = start(folder)
        with saver.traced(tmp_path / "log", "-e", f"inject={name}:signal=KILL:when={number}"):
            assert saver.save() == "", (name, number)
        assert assert_newest_is_whole(folder, (name, number)) in (2, 3)
    print(f"{len(calls)} deaths")


@pytest.mark.parametrize("limit", ["size=600k", "nr_inodes=16"])
def test_a_file_system_that_is_full(start, tmp_path, limit):
    """A real one, in a name space of its own."""
    mount = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs name spaces")
    folder = tmp_path / "disk"
    folder.mkdir()
    saver = start(folder / "run", *mount, "sh", "-c", f'mount -t tmpfs -o {limit} none {folder} && exec "$@"', "sh")
    inside = Path(f"/proc/{saver.process.pid}/root{folder}")
    assert saver.save() == "saved"
    with suppress(OSError):  # full
        for number in range(1000):
            (inside / f"filler-{number}").write_bytes(bytes(0 if limit.startswith("nr_inodes") else 4096))
    answer = saver.save()
    assert "no space" in answer.lower(), answer
    assert assert_newest_is_whole(inside / "run", limit) == 3
    for each in inside.glob("filler*"):
        each.unlink()
    assert saver.save() == "saved"
    assert assert_newest_is_whole(inside / "run", limit) == 5


def test_a_folder_that_is_removed(start, tmp_path):
    """It is made anew, and a run that is told to stop has saved its last state."""
    folder = tmp_path / "run"
    saver = start(folder)
    shutil.rmtree(folder)
    assert saver.save() == "saved"
    assert assert_newest_is_whole(folder, "removal") == 3
    folder.rename(tmp_path / "moved")
    folder.write_text("a file in its place")
    assert "run can't be written: Not a directory" in (answer := saver.save()) or "File exists" in answer, answer
    time.sleep(0.1)
    folder.unlink()
    assert saver.save() == "saved"
