"""A run on disk: its lock, config.yaml, metrics.jsonl and summary.json.

Files are replaced as a whole or not at all, and metrics.jsonl only ever holds whole lines, so a run can be stopped
at any moment and continued. No TensorFlow here.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from omegaconf import OmegaConf

from accumtrain.config.convert import to_mapping
from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.kinds.values import show
from accumtrain.runs.files import disk_errors, plain, write_atomic
from accumtrain.runs.folder import CHECKPOINTS, folder_errors, folder_of, make_folder

# The keys that decide what is learned. A continued run must keep their values; all others may change.
LEARNED_GROUPS = ("model", "optim", "schedule", "loss", "data", "ema")
LEARNED_KEYS = ("batch_size", "precision", "run.seed")
NOT_LEARNED = ("model.memory", "data.dir")


class Run:
    """The folder of a run. One process locks it while the context is open; the constructor touches no file.

    Raises (on entering):
        ConfigError: the folder can't be made, another process trains there, or it holds a run that this
            configuration does not continue.
    """

    def __init__(self, config: Config):
        self.config = config
        self.path = folder_of(config)
        self.checkpoints = self.path / CHECKPOINTS
        self._metrics = self.path / "metrics.jsonl"
        self._lock: TextIO | None = None

    def __enter__(self) -> Run:
        make_folder(self.path)
        with folder_errors(self.path):
            self._lock = (self.path / ".lock").open("a+")
        try:
            self._acquire(self._lock)
            self._check_continues()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()  # which releases the lock
            self._lock = None

    def save_config(self) -> None:
        """Writes config.yaml."""
        write_atomic(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(to_mapping(self.config))))

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one line to metrics.jsonl. Numbers may be NumPy scalars; non-finite ones become null."""
        line = json.dumps(plain(record), allow_nan=False).encode() + b"\n"
        with disk_errors(self._metrics), self._metrics.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.truncate(self._metrics, size)
                raise

    def truncate(self, step: int) -> None:
        """Deletes the records after update `step`, and a last line that is incomplete."""
        if not self._metrics.exists():
            return
        text = self._metrics.read_text()
        kept = "".join(line + "\n" for line, record in _parse(text, self._metrics) if record.get("step", 0) <= step)
        if kept != text:
            write_atomic(self._metrics, kept)

    def records(self) -> list[dict[str, Any]]:
        """All records of metrics.jsonl, in order."""
        return read_records(self.path)

    def read_summary(self) -> dict[str, Any] | None:
        """The summary written last, None if there is none yet."""
        return read_summary(self.path)

    def _acquire(self, lock: TextIO) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise ConfigError(
                f"process {owner} is training in {self.path}; wait for it or stop it, or choose another run.name"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"run.dir={self.config.run.dir}: its file system has no locks ({error.strerror}); choose a local one"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()

    def _check_continues(self) -> None:
        if not self._trained():
            return
        if not self.config.run.resume:
            raise ConfigError(
                f"run.resume=false, but {self.path} holds a trained run; choose another run.name, delete the folder, "
                "or leave run.resume out to continue it"
            )
        saved = self.path / "config.yaml"
        if not saved.exists():
            raise ConfigError(f"{self.path} holds a trained run without its config.yaml; choose another run.name")
        before = _learned(OmegaConf.to_container(OmegaConf.load(saved)))
        now = _learned(to_mapping(self.config))
        changed = [key for key in now if key in before and before[key] != now[key]]
        if changed:
            differences = ", ".join(f"{key}={show(before[key])} there and {show(now[key])} here" for key in changed)
            raise ConfigError(
                f"{self.path} holds a run that learns something else: {differences}; choose another run.name, "
                "or give the values it began with to continue it"
            )

    def _trained(self) -> bool:
        checkpoints = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        return checkpoints or (self._metrics.exists() and self._metrics.stat().st_size > 0)


class Bystander(Run):
    """The folder of a run that another process has locked. This process reads it and writes nothing."""

    _last = 0

    def __enter__(self) -> Run:
        return self

    def save_config(self) -> None:
        pass

    def log(self, record: Mapping[str, Any]) -> None:
        pass

    def truncate(self, step: int) -> None:
        """Hides the records after update `step`, which the process with the lock may not have deleted yet."""
        self._last = step

    def records(self) -> list[dict[str, Any]]:
        return [record for record in super().records() if record.get("step", 0) <= self._last]


def read_summary(path: Path) -> dict[str, Any] | None:
    """The summary of the run in the folder `path`, None if there is none yet."""
    file = path / "summary.json"
    return json.loads(file.read_text()) if file.exists() else None


def read_records(path: Path) -> list[dict[str, Any]]:
    """The metrics of the run in the folder `path`, in order."""
    file = path / "metrics.jsonl"
    return [record for _, record in _parse(file.read_text(), file)] if file.exists() else []


def _learned(mapping: Any) -> dict[str, Any]:
    """The values that decide what is learned, by dotted key."""
    flat = {f"{group}.{key}": value for group in LEARNED_GROUPS for key, value in mapping.get(group, {}).items()}
    for key in LEARNED_KEYS:
        value = mapping
        for name in key.split("."):
            value = value[name]
        flat[key] = value
    return {key: value for key, value in flat.items() if key not in NOT_LEARNED}


def _parse(text: str, path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The complete lines of `text`, each with its record. An incomplete last line is left out."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    parsed = []
    for number, line in enumerate(lines, start=1):
        try:
            parsed.append((line, json.loads(line)))
        except json.JSONDecodeError as error:
            raise CheckpointError(f"{path} line {number} is no JSON: repair or delete that line") from error
    return parsed
