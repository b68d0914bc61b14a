"""Pictures as they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def drawn(saved_figures: list[Any], tmp_path: Path) -> Callable[..., Any]:
    """Draw into a file and return the figure."""

    def draw(function: Callable[..., None], *arguments: Any) -> Any:
        function(*arguments, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
        return saved_figures.pop()

    return draw
