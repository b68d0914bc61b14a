"""Close matches for mistyped names, and values shown as the user would type them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def suggest(wrong: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the closest known names, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(wrong, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(known)}"


def show(value: Any) -> str:
    """`value` as on the command line: null, true, [1,2], text without quotes."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{','.join(map(show, value))}]"
        case dict():
            return "{" + ",".join(f"{key}:{show(item)}" for key, item in value.items()) + "}"
        case _:
            return str(value)
