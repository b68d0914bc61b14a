"""The folder of a sweep while it runs: each job leaves its outcome there, and a file says whose sweep goes on.

Jobs may run in other processes and on other machines, so files in run.dir, not variables, carry what became of them.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil

from accumtrain.console import say
from accumtrain.errors import ConfigError
from accumtrain.runs.files import write_json
from accumtrain.shell.job_outcome import JobOutcome

VARIABLE = "ACCUMTRAIN_SWEEP_DIR"  # environment variable, read by conf/config.yaml: Hydra's own files go there too
OWNER = "owner"  # host and process of the command that started the sweep


@contextmanager
def open_sweep_folder(run_dir: Path) -> Iterator[Path]:
    """A new folder in `run_dir`. Its end is that of the sweep; only logs of a launcher stay.

    Raises:
        ConfigError: it can't be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".sweep-", dir=run_dir))
    except OSError as error:
        raise ConfigError(f"run.dir={run_dir} can't be used: {error.strerror}; choose another one") from error
    os.environ[VARIABLE] = str(folder)
    (folder / OWNER).write_text(f"{socket.gethostname()} {os.getpid()}")
    try:
        yield folder
    finally:
        _close(folder)


def goes_on(folder: Path) -> bool:
    """Shall jobs start and go on? Not after `end`, nor once the command that started them is gone."""
    try:
        host, process = (folder / OWNER).read_text().split()
    except FileNotFoundError:
        return False
    return host != socket.gethostname() or psutil.pid_exists(int(process))


def end(folder: Path) -> None:
    """Jobs that run stop with their state saved, and no other starts."""
    (folder / OWNER).unlink(missing_ok=True)


def leave(folder: Path, number: int, outcome: JobOutcome) -> None:
    """Leaves the outcome of job `number` for the command that started the sweep."""
    write_json(_file(folder, number), asdict(outcome))


def left_by(folder: Path, number: int) -> JobOutcome | None:
    """The outcome that job `number` has left, None if it has left none."""
    file = _file(folder, number)
    return JobOutcome(**json.loads(file.read_text())) if file.exists() else None


def collect(folder: Path) -> list[JobOutcome]:
    """The outcomes left so far, in the order of the jobs."""
    return [JobOutcome(**json.loads(file.read_text())) for file in sorted(folder.glob("[0-9]*.json"))]


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"


def _close(folder: Path) -> None:
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    if any(folder.iterdir()):
        say(f"what the launcher wrote, logs of the jobs among it, stays in {folder}")
    else:
        folder.rmdir()
