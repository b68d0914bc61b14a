"""The programs of docs/keras.md and docs/index.md run as they stand there."""

import re
from pathlib import Path

import pytest

from tests.programs import output_of

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "".join((DOCS / page).read_text() for page in ("keras.md", "index.md"))
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
NAMES = ["accumulate", "Accumulate", "fit", "reversible", "quick start"]
SLOW = {"fit", "reversible"}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, program in zip(NAMES, PROGRAMS, strict=True)
    ],
)
def test_program_runs(program, tmp_path):
    output_of("-c", program, cwd=tmp_path)
