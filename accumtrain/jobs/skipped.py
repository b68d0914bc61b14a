"""skipped.json: the examples that data.on_error=skip has left out of a run, in all of its sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from accumtrain.data.source import Data
from accumtrain.runs.files import read_json, write_json
from accumtrain.runs.form import is_anything

SKIPPED = "skipped.json"
_NAMED = 3  # on the screen


class SkippedExamples:
    """Those of the run in `folder`; only the process that `writes` changes the file."""

    def __init__(self, folder: Path, data: Data, *, writes: bool) -> None:
        self.file, self._data, self._writes = folder / SKIPPED, data, writes

    def note(self, tell: Callable[[str], None]) -> None:
        """Adds those that are new to the file, and tells of them."""
        known = self._noted()
        new = [each for each in self._data.skipped if each not in known] if self._writes else []
        if not new:
            return
        write_json(self.file, {"count": len(known + new), "examples": known + new})
        some = ", ".join(each["name"] for each in new[:_NAMED]) + (", ..." if len(new) > _NAMED else "")
        tell(f"left out, as they can't be read: {len(new):,} examples, which {SKIPPED} names ({some})")

    @property
    def count(self) -> int:
        return len(self._noted())

    def _noted(self) -> list[Any]:
        return read_json(self.file, {"examples": [is_anything]}).get("examples", []) if self.file.exists() else []
