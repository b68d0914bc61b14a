"""requirements/tpu.txt is installed without a resolver: nothing that accumtrain needs may be missing from it."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).parents[1]


def names(lines):
    return {re.match(r"[\w-]+", line)[0].lower() for line in lines if line and not line.startswith("#")}


def test_every_dependency_is_pinned_and_tensorflow_is_the_tpus():
    lines = (ROOT / "requirements/tpu.txt").read_text().splitlines()
    assert all("==" in line for line in lines if not line.startswith("#"))
    needed = names(line for line in requires("accumtrain") if "extra ==" not in line)
    assert "tensorflow" in needed
    assert needed - {"tensorflow"} | {"tensorflow-tpu", "libtpu", "pytest"} <= names(lines)
    assert "tensorflow" not in names(lines)
