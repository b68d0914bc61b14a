"""The commands of docs/models.md about trained weights and rates, one after the other as they stand there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
COMMANDS = "".join(re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)).splitlines()


@pytest.mark.slow
def test_the_commands(command, tmp_path):
    screens = {}
    for line in COMMANDS:
        program, *arguments = shlex.split(line)
        assert program == "accumtrain"
        answer = command(*arguments, "eval.every=1000")
        assert answer.code == 0, answer.err
        (name,) = [each.partition("=")[2] for each in arguments if each.startswith("run.name=")]
        screens[name] = answer.out
    for name in ("tuned", "head", "slow"):
        said = json.loads((tmp_path / "runs" / name / "weights.json").read_text())
        assert said["left"] == {}
    assert "778 parameters" in screens["head"], "only the classifier is trained"
