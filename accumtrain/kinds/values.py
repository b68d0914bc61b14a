"""Constraints on the values of keys, suggestions for unknown names, and values as text.

A field declares its constraints in its type: `lr: Annotated[float | None, POSITIVE]`. `config/rules.py` checks them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from accumtrain.errors import ConfigError


class Constraint(Protocol):
    """A rule about one value."""

    def check(self, key: str, value: Any) -> None:
        """Raises ConfigError if `value`, set at the dotted `key`, breaks the rule."""


@dataclass(frozen=True)
class Range:
    """Numbers with low <= value < high; with `above`, low < value < high. Values that are not numbers pass."""

    low: float
    high: float = math.inf
    above: bool = False

    def check(self, key: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if not ((self.low < value if self.above else self.low <= value) and value < self.high):
            raise ConfigError(f"{key}={show(value)}: {self}")

    def __str__(self) -> str:
        low = f"must be {'above' if self.above else 'at least'} {self.low:g}"
        return low if self.high == math.inf else f"{low} and below {self.high:.10g}"


@dataclass(frozen=True)
class OneOf:
    """Text from a list. null passes, as the type decides whether it is allowed."""

    choices: tuple[str, ...]

    def check(self, key: str, value: Any) -> None:
        if value is not None and value not in self.choices:
            raise ConfigError(f"{key}={show(value)}: no such choice; {suggest(str(value), self.choices)}")


@dataclass(frozen=True)
class Word:
    """Text must be `word`; numbers and booleans pass. `rule` tells the user what the value must be."""

    word: str
    rule: str

    def check(self, key: str, value: Any) -> None:
        if isinstance(value, str) and value != self.word:
            raise ConfigError(f"{key}={value}: {self.rule}")


@dataclass(frozen=True)
class NotEmpty:
    """Text that is not empty. `remedy` tells the user what to write."""

    remedy: str

    def check(self, key: str, value: Any) -> None:
        if value == "":
            raise ConfigError(f"{key} is empty; {self.remedy}")


POSITIVE = Range(0, above=True)
NOT_NEGATIVE = Range(0)
COUNT = Range(1)
FRACTION = Range(0, 1)


def suggest(wrong: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the closest known names, or all of them."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(by_lower[match] for match in close)}?"
    return f"choose from {', '.join(by_lower.values())}"


def show(value: Any) -> str:
    """`value` as written on the command line: null, true, [1,2], text without quotes."""
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
