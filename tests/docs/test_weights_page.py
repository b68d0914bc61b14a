"""The commands of "Can I start from trained weights?" in docs/models.md, one after the other as they stand there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
(BLOCK,) = re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_commands(command, tmp_path):
    for line in BLOCK.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "accumtrain"
        answer = command(*arguments, "eval.every=1000")
        assert answer.code == 0, answer.err
    for name in ("tuned", "head"):
        said = json.loads((tmp_path / "runs" / name / "weights.json").read_text())
        assert said["left"] == {}
    assert "778 parameters" in answer.out, "only the classifier is trained"
