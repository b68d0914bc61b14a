"""A digest of this package's own files: what was kept by another version of it must not be used."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def source_digest() -> str:
    """A digest of all source and configuration of the package."""
    state = hashlib.sha256()
    for file in sorted(path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        state.update(f"{file.relative_to(PACKAGE)}\0{file.stat().st_size}\0".encode())
        state.update(file.read_bytes())
    return state.hexdigest()
