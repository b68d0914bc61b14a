"""The origin of a run, for its summary.json, and what is left of a run, read by somebody else. No TensorFlow here."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from accumtrain.config.keys import find_changed_keys
from accumtrain.errors import CheckpointError
from accumtrain.process.environment import job_seconds
from accumtrain.process.machine import cpu
from accumtrain.runs.checkpoint_store import REASON, CheckpointStore, DamagedError, Saved
from accumtrain.runs.contents import read_config, read_summary
from accumtrain.runs.files import read_text
from accumtrain.runs.names import BEST, CHECKPOINTS, QUARANTINE
from accumtrain.version import __version__

PACKAGES = ("tensorflow", "keras", "numpy", "hydra-core")
OPTIONAL = ("jax",)
GIT_SECONDS = 5.0
# The command writes nothing, and starts no monitor of the file system that the repository's configuration may name.
GIT = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false"),
    *("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
)
DIRTY = "-dirty"
WHOLE = "whole"
SUMMARY_KEYS = ("status", "step", "epoch", "train", "val", "test", "best", "best_on", "provenance")

Content = TypeVar("Content")


def provenance(device: str) -> dict[str, Any]:
    """Return software, source, command and machine of this process; None for what can't be known.

    Args:
        device: the devices, as the user reads them (`Devices.description`).

    Returns:
        versions: of accumtrain, python, tensorflow, keras, numpy, hydra-core.
        git: commit of the working folder, and whether files that git knows are changed; None outside a repository.
        command: sys.argv as it was given: interpolations such as ${oc.env:TOKEN} are not resolved.
        started: of the job, ISO 8601, UTC.
        host, platform, cpu (model, instructions), device.
    """
    started = datetime.now(timezone.utc) - timedelta(seconds=job_seconds())
    return {
        "versions": versions(),
        "git": _git(),
        "command": list(sys.argv),
        "started": started.isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": cpu(),
        "device": device,
    }


def versions() -> dict[str, str | None]:
    """Return the version of each piece of software that decides what a run computes; None for one that has none."""
    return {
        "accumtrain": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        **{name: version for name in OPTIONAL if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # tensorflow-tpu has TensorFlow's modules under another name
        return getattr(sys.modules.get(package), "__version__", None)


def _git() -> dict[str, Any] | None:
    try:
        done = subprocess.run(
            GIT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, not this user's, too slow
        return None
    described = done.stdout.strip()
    return {"commit": described.removesuffix(DIRTY), "dirty": described.endswith(DIRTY)}


def inspect_run(folder: Path) -> dict[str, Any]:
    """Return the facts that the folder of a run holds. Damaged files are named in `unreadable`; nothing is changed.

    Returns:
        status, step, epoch, train, val, test, best, best_on, provenance: as in summary.json; None before there is one.
        changed: default and value of each key of config.yaml, but run.name, that differs from its default.
        checkpoints: step, path, bytes, written (ISO 8601, UTC) and state ("whole", or what is wrong) of each, newest
            first, then the best one.
        quarantine: path and reason of each damaged checkpoint that was moved away.
        unreadable: messages about files that are damaged.
    """
    unreadable: list[str] = []

    def readable(read: Callable[[], Content | None]) -> Content | None:
        try:
            return read()
        except CheckpointError as error:
            unreadable.append(str(error))
            return None

    summary: Mapping[str, Any] = readable(lambda: read_summary(folder)) or {}
    config = folder / "config.yaml"
    values = readable(lambda: read_config(config) if config.exists() else None) or {}
    checkpoints = folder / CHECKPOINTS
    stores = (CheckpointStore(checkpoints), CheckpointStore(checkpoints / BEST))
    found = [saved for store in stores for saved in readable(store.newest_first) or []]
    reasons = sorted((checkpoints / QUARANTINE).glob(f"*/{REASON}"))
    return {
        **{key: summary.get(key) for key in SUMMARY_KEYS},
        "changed": {key: list(pair) for key, pair in find_changed_keys(values).items() if key != "run.name"},
        "checkpoints": [_describe(saved) for saved in found],
        "quarantine": [{"path": str(file.parent), "reason": readable(partial(read_text, file))} for file in reasons],
        "unreadable": unreadable,
    }


def _describe(saved: Saved) -> dict[str, Any]:
    written, size = None, None
    try:
        size = sum(file.lstat().st_size for file in saved.path.iterdir())
        saved.check()
        written = datetime.fromtimestamp(saved.written_at, timezone.utc).isoformat(timespec="seconds")
        state = WHOLE
    except (DamagedError, CheckpointError, OSError) as error:
        state = f"damaged: {error}" if isinstance(error, DamagedError) else str(error)
    return {"step": saved.step, "path": str(saved.path), "bytes": size, "written": written, "state": state}
