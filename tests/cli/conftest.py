"""Files that a command adds by --config-dir."""

from __future__ import annotations

import pytest


@pytest.fixture
def own_file(tmp_path):
    """Write a file of the folder `own`, such as model/tiny.yaml, beside which `command` runs."""

    def write(name, text):
        file = tmp_path / "own" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write
