"""The command line as a benchmark runs it: in a process of its own, its run in a folder of the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def call(folder: Path, *overrides: str, show: bool = False) -> tuple[int, Path]:
    """Runs `accumtrain *overrides`; returns its exit code and the folder of the run."""
    command = [sys.executable, "-m", "accumtrain", *overrides, f"run.dir={folder}", "run.name=run"]
    return subprocess.run(command, capture_output=not show, check=False).returncode, folder / "run"


def result(folder: Path, file: str, *overrides: str, show: bool = False) -> dict[str, Any]:
    """What `accumtrain *overrides` leaves in a JSON file of its run; it must end well."""
    code, run = call(folder, *overrides, show=show)
    if code != 0:
        raise SystemExit(f"accumtrain {' '.join(overrides)}: exit code {code}")
    return json.loads((run / file).read_text())
