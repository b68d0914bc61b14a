"""Python in a process of its own, which finds modules where this one does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def with_path(**variables: str) -> dict[str, str]:
    """Return the environment of this process with its path of modules, and `variables`."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | variables


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess:
    """Run Python to its end, as `subprocess.run` does. What it writes is captured."""
    settings: dict[str, Any] = {"env": with_path(), "capture_output": True, "text": True, "check": False} | options
    return subprocess.run([sys.executable, *map(str, arguments)], **settings)


def start_python(*arguments: object, **options: Any) -> subprocess.Popen:
    """Start Python, as `subprocess.Popen` does. What it writes is read from pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    settings: dict[str, Any] = {"env": with_path(), "text": True} | pipes | options
    return subprocess.Popen([sys.executable, *map(str, arguments)], **settings)


def eventually(condition: Callable[[], Any], seconds: float = 60) -> bool:
    """Wait for a condition, and return whether it holds."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


def output_of(*arguments: object, **options: Any) -> str:
    """Run Python, which must succeed, and return what it prints."""
    done = run_python(*arguments, **options)
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
    return done.stdout
