"""What a continued run must find again: facts about a data set that change when its content does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from accumtrain.data.source import Source

_HEX_DIGITS = 16


def fingerprint_of(source: Source) -> dict[str, Any]:
    """The fingerprint of an opened source: what it says of itself, its classes and the sizes of its splits."""
    return {
        "data.classes": source.class_names or source.num_classes,
        **{f"data.{name}.examples": split.size for name, split in source.splits.items()},
        **source.fingerprint,
    }


def digest(parts: Iterable[str]) -> str:
    """A short SHA-256 of texts in their order, such as the names of files relative to the data set's folder."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        state.update(len(encoded).to_bytes(8, "little") + encoded)
    return state.hexdigest()[:_HEX_DIGITS]
