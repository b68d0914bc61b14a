"""The user's cache folder: what can be made anew at any time lies there."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path | None:
    """The folder of accumtrain in the user's cache folder (XDG base directory specification), which may not exist.

    None for a user without a home, as in some containers.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "accumtrain"
    except RuntimeError:  # Path.home() finds none
        return None
