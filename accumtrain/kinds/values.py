"""What a value may be, and how values are shown: the constraints that fields declare, close matches, plain text.

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
    """Numbers with low <= value < high, or low < value with `above`. Values that are no numbers pass."""

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
    """A text out of a list. null passes where the type allows it."""

    choices: tuple[str, ...]

    def check(self, key: str, value: Any) -> None:
        if value is not None and value not in self.choices:
            raise ConfigError(f"{key}={show(value)}: no such choice; {suggest(str(value), self.choices)}")


@dataclass(frozen=True)
class Word:
    """Of texts only this one; numbers and booleans pass. `rule` says what the value must be."""

    word: str
    rule: str

    def check(self, key: str, value: Any) -> None:
        if isinstance(value, str) and value != self.word:
            raise ConfigError(f"{key}={value}: {self.rule}")


@dataclass(frozen=True)
class NotEmpty:
    """A text with something in it. `remedy` says what to write."""

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
