"""Where a run comes from: software, source, command and machine, for its summary.json. No TensorFlow is imported."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

from accumtrain.process.environment import job_seconds
from accumtrain.process.processor import cpu
from accumtrain.version import __version__

PACKAGES = ("tensorflow", "keras", "numpy", "hydra-core")
GIT_SECONDS = 5.0
# writes nothing, and starts no monitor of the file system that the repository's configuration may name
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
DESCRIBE = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
DIRTY = "-dirty"


def provenance(device: str) -> dict[str, Any]:
    """What can be known of this process; a value that can't be is None.

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
        "platform": platform_name(),
        "cpu": cpu(),
        "device": device,
    }


def versions() -> dict[str, str | None]:
    """The version of each piece of software that decides what a run computes; None for one that has none."""
    return {
        "accumtrain": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def platform_name() -> str:
    """System, kernel, machine and C library, such as Linux-6.1.0-x86_64-with-glibc2.36."""
    return platform.platform()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # tensorflow-tpu has TensorFlow's modules under another name
        return getattr(sys.modules.get(package), "__version__", None)


def _git() -> dict[str, Any] | None:
    try:
        done = subprocess.run(
            [*GIT, *DESCRIBE],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, not this user's, too slow
        return None
    described = done.stdout.strip()
    return {"commit": described.removesuffix(DIRTY), "dirty": described.endswith(DIRTY)}
