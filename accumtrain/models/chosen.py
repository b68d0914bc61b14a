"""Which variables the patterns of model.freeze choose."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from accumtrain.errors import ConfigError

NOT = "-"  # before a pattern whose paths are taken back
NEAREST = 3


def chosen(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """The paths that the patterns choose, in order of `paths`. The last pattern that matches a path decides.

    Raises:
        ConfigError: a pattern matches no path, or all paths are chosen.
    """
    decided: dict[str, bool] = {}
    for pattern in patterns:
        matched = [path for path in paths if fnmatchcase(path, pattern.removeprefix(NOT))]
        if not matched:
            nearest = difflib.get_close_matches(pattern.removeprefix(NOT), paths, n=NEAREST, cutoff=0.0)
            raise ConfigError(
                f"model.freeze={pattern}: no variable has such a path; the nearest are {', '.join(nearest)} "
                "(* stands for any text, / included)"
            )
        decided |= dict.fromkeys(matched, not pattern.startswith(NOT))
    frozen = [path for path in paths if decided.get(path)]
    if len(frozen) == len(paths):
        raise ConfigError(
            f"model.freeze=[{','.join(patterns)}] freezes all {len(paths)} variables, and nothing is left to train; "
            f"take some back, such as {NOT}{paths[-1].rpartition('/')[0]}/*"
        )
    return frozen
