"""Files that a command adds by --config-dir."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def own_file(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file of the folder `own`, such as model/tiny.yaml, beside which `command` runs."""

    def write(name: str, text: str) -> Path:
        file = tmp_path / "own" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write
