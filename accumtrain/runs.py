"""The folder of a run: its name, its lock, config.yaml, metrics.jsonl and summary.json.

Files are replaced as a whole or not at all, and metrics.jsonl only ever holds whole lines, so a run can be stopped
at any moment and continued. No TensorFlow here.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from omegaconf import OmegaConf

from accumtrain.config import Config, show, to_mapping
from accumtrain.errors import CheckpointError, ConfigError

LONGEST_NAME = 100  # characters of a derived name, its hash aside
NOT_IN_NAMES = {"job", "report.runs", "run.name", "run.dir", "run.resume", "device.workers", "device.index"}

# What decides what is learned. A run that continues keeps these; everything else may change.
LEARNED_GROUPS = ("model", "optim", "schedule", "data", "ema")
LEARNED_KEYS = ("batch_size", "precision", "run.seed")
NOT_LEARNED = ("model.memory", "data.dir")


def run_name(config: Config, overrides: Sequence[str]) -> str:
    """run.name, or a name derived from the command: the same command gives the same name.

    Args:
        overrides: the command's `key=value` arguments, those of this job in a sweep.
    """
    if config.run.name is not None:
        return config.run.name
    values = dict(override.lstrip("+~").partition("=")[::2] for override in overrides)
    base, in_base = f"{config.model.label}-{config.data.label}", {"model", "data", "model.name", "data.name"}
    if "experiment" in values:
        base, in_base = values["experiment"], {"experiment"}
    told = {
        key: value
        for key, value in sorted(values.items())
        if key not in in_base | NOT_IN_NAMES and not key.startswith(("log.", "bench.", "hydra"))
    }
    exact = "-".join([base, *(f"{key}-{value}" for key, value in told.items())])
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", exact).strip("._-")
    if name == exact and len(name) <= LONGEST_NAME:
        return name
    # two commands that shorten to the same name must not share a folder
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"


class Run:
    """A run's folder, held by one process while the context is open. Constructing it touches nothing.

    Raises (on entering):
        ConfigError: the folder can't be made, another process trains there, or it holds a run that this
            configuration does not continue.
    """

    def __init__(self, config: Config):
        self.config = config
        self.path = Path(config.run.dir) / run_name(config, [])
        self.checkpoints = self.path / "checkpoints"
        self._metrics = self.path / "metrics.jsonl"
        self._lock: TextIO | None = None

    def __enter__(self) -> Run:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a+")
        except OSError as error:
            raise ConfigError(
                f"the run's folder {self.path} can't be used: {error.strerror}; choose another run.dir or run.name"
            ) from error
        try:
            self._hold(self._lock)
            self._check_continues()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()  # closing gives the lock back
            self._lock = None

    def save_config(self) -> None:
        """Writes config.yaml."""
        write_atomic(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(to_mapping(self.config))))

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one line to metrics.jsonl. Numbers may be NumPy scalars; non-finite ones become null."""
        line = json.dumps(_plain(record), allow_nan=False).encode() + b"\n"
        with disk_errors(self._metrics), self._metrics.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.truncate(self._metrics, size)
                raise

    def truncate(self, step: int) -> None:
        """Drops the records after update `step`, and a last line that was only half written."""
        if not self._metrics.exists():
            return
        text = self._metrics.read_text()
        kept = "".join(line + "\n" for line, record in _parse(text, self._metrics) if record.get("step", 0) <= step)
        if kept != text:
            write_atomic(self._metrics, kept)

    def records(self) -> list[dict[str, Any]]:
        """All records of metrics.jsonl, in order."""
        return read_records(self.path)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json. Numbers may be NumPy scalars; non-finite ones become null."""
        write_json(self.path / "summary.json", summary)

    def read_summary(self) -> dict[str, Any] | None:
        """The summary written last, None if there is none yet."""
        return read_summary(self.path)

    def _hold(self, lock: TextIO) -> None:
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
    """The folder of a run that another process holds: it is read here, and nothing is written."""

    _last = 0

    def __enter__(self) -> Run:
        return self

    def save_config(self) -> None:
        pass

    def log(self, record: Mapping[str, Any]) -> None:
        pass

    def truncate(self, step: int) -> None:
        """From here on only records up to update `step` are seen, whether or not the holder has cut them off yet."""
        self._last = step

    def records(self) -> list[dict[str, Any]]:
        return [record for record in super().records() if record.get("step", 0) <= self._last]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        pass


def read_summary(path: Path) -> dict[str, Any] | None:
    """The summary of the run in the folder `path`, None if there is none yet."""
    file = path / "summary.json"
    return json.loads(file.read_text()) if file.exists() else None


def read_records(path: Path) -> list[dict[str, Any]]:
    """The metrics of the run in the folder `path`, in order."""
    file = path / "metrics.jsonl"
    return [record for _, record in _parse(file.read_text(), file)] if file.exists() else []


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of `value` as JSON. Numbers may be NumPy scalars; non-finite ones become null."""
    write_atomic(path, json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Replaces the file `path` by `text`, or leaves it as it was.

    Raises:
        CheckpointError: it can't be written, for example because the disk is full.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with disk_errors(path):
        try:
            with unfinished.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Within, an OSError about writing `path` becomes a CheckpointError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(
                f"no space is left to write {path}; free some, for example old runs beside it, and run the same "
                "command again: it continues from the last checkpoint"
            ) from error
        raise CheckpointError(f"{path} can't be written: {error.strerror}") from error


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
    """The whole lines of `text`, each with its record; the end of a line that was cut off is left out."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    parsed = []
    for number, line in enumerate(lines, start=1):
        try:
            parsed.append((line, json.loads(line)))
        except json.JSONDecodeError as error:
            raise CheckpointError(f"{path} line {number} is no JSON: repair or delete that line") from error
    return parsed


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it."""
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float():
            return float(value) if math.isfinite(value) else None
        case str() | int() | None:
            return value
        case _:
            return _plain(value.item())
