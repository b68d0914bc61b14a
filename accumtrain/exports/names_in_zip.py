"""The names of the classes, in a file that is a zip archive or may end with one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

from accumtrain.exports.exported import CLASS_NAMES


def append_names(path: Path, class_names: Sequence[str]) -> None:
    """Adds class_names.json to the archive. `ZipFile(path).read("class_names.json")` reads it."""
    with ZipFile(path, "a") as archive:
        archive.writestr(CLASS_NAMES, json.dumps(list(class_names)))
