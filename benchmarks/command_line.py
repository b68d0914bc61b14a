"""The command line as a benchmark runs it: in a process of its own, its run in a folder of the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = "from accumtrain.cli import main; main()"


def accumtrain(folder: Path, *overrides: str, show: bool = False) -> tuple[int, dict[str, Any] | None]:
    """Runs `accumtrain *overrides`; returns its exit code and, where that is 0, the summary of the run."""
    command = [sys.executable, "-c", PROGRAM, *overrides, f"run.dir={folder}", "run.name=run"]
    code = subprocess.run(command, capture_output=not show, check=False).returncode
    return code, json.loads((folder / "run" / "summary.json").read_text()) if code == 0 else None
