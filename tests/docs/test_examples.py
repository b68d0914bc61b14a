"""Every program in examples/ runs as it stands there, and learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOW = {"mirrored", "reversible", "transformer"}  # take more than 10 s
ACCURACY = re.compile(r"(?:val_accuracy:|test accuracy|digit_accuracy:) (\d\.\d+)")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(file, id=file.stem, marks=pytest.mark.slow if file.stem in SLOW else ())
        for file in sorted(EXAMPLES.glob("*.py"))
    ],
)
def test_example_learns(program, tmp_path):
    assert len(program.read_text().splitlines()) < 60
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(ACCURACY.findall(done.stdout)[-1]) > 0.6
    assert not any(tmp_path.iterdir())


def test_the_slow_ones_are_there():
    assert {file.stem for file in EXAMPLES.glob("*.py")} >= SLOW
