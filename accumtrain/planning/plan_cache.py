"""Answers of rehearsals, kept for the next plan of the same run by the same program on the same machine.

The name of a file is a hash of all that an answer depends on, so an answer is used as it is or not at all. Where files
of the user's have a part in it, data or code, nothing is kept: their names would not tell whether they have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accumtrain.config.convert import from_mapping
from accumtrain.errors import CheckpointError
from accumtrain.process.environment import kernel_settings
from accumtrain.process.own_source import source_digest
from accumtrain.process.program import is_own_run
from accumtrain.process.user_cache import user_cache
from accumtrain.runs.files import write_json

PACKAGES = ("tensorflow", "keras", "numpy")
WITHOUT_FILES = ("synthetic", "digits")  # sources whose examples follow from the configuration
FIRST_MB = 1024  # devices/cpu.py takes as much at first, or what is free if that is less
NOT_ASKED = ("run", "log", "job")  # groups without effect on memory


def folder() -> Path | None:
    """Where answers are kept; None for a user without a home."""
    cache = user_cache()
    return None if cache is None else cache / "plans"


def read(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer to the same request by the same program on the same machine; None if there is none."""
    path = _path(request)
    if path is None or not path.exists():
        return None
    with suppress(OSError, ValueError):  # unreadable or damaged: it is only a cache
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return None


def write(request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Keeps an answer, where that is possible."""
    path = _path(request)
    if path is None:
        return
    with suppress(OSError, CheckpointError):  # a disk that is full or not writable costs the next plan some seconds
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, answer)


def _path(request: Mapping[str, Any]) -> Path | None:
    config = request["config"]
    home = folder()
    model = config["model"]
    known = is_own_run(from_mapping(config)) and model["kind"] != "keras" and not model.get("weights")
    if home is None or not known or config["data"]["kind"] not in WITHOUT_FILES:
        return None
    asked = {key: value for key, value in config.items() if key not in NOT_ASKED}
    first = min(request["free_mb"], FIRST_MB)  # what the allocator begins with
    parts = [asked, request["sizes"], request["commit"], first, _program(), _machine()]
    everything = json.dumps(parts, sort_keys=True)
    return home / f"{hashlib.sha256(everything.encode()).hexdigest()[:32]}.json"


def _program() -> list[str]:
    """Versions, and a digest of every file of this package."""
    return [source_digest(), platform.python_version(), *(f"{name} {version(name)}" for name in PACKAGES)]


def _machine() -> list[str]:
    """What the kernels that are chosen, and their memory, depend on."""
    cpu = Path("/proc/cpuinfo")
    described = cpu.read_text(encoding="utf-8") if cpu.exists() else platform.processor()
    facts = {line for line in described.splitlines() if line.startswith(("model name", "flags", "cache size"))}
    settings = [f"{name}={value}" for name, value in kernel_settings().items()]
    return [platform.machine(), *sorted(facts), str(os.cpu_count()), *settings]
