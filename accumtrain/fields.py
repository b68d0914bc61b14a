"""Types, constraints and roles of values, suggestions for unknown names, and values as text.

A field declares them in its type: `lr: Annotated[float | None, POSITIVE, Role.RULE]`. `convert` checks the type, and
the constraints of what is in a TypedDict or a list. `config/check.py` checks those of a configuration.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import math
import re
import sys
import typing
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Flag
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union

from accumtrain.errors import ConfigError

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


class Constraint:
    """A rule about one value."""

    def check(self, key: str, value: Any) -> None:
        """Raise ConfigError if `value`, set at the dotted `key`, breaks the rule."""

    def __str__(self) -> str:
        """Return the rule in a few words. It is empty if the reference of the keys shows it as the type."""
        return ""


@dataclass(frozen=True)
class Range(Constraint):
    """Numbers with low <= value < high; with `above`, low < value; with `closed`, value <= high. Other values pass."""

    low: float
    high: float = math.inf
    above: bool = False
    closed: bool = False

    def check(self, key: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        low = self.low < value if self.above else self.low <= value
        high = value <= self.high if self.closed else value < self.high
        if not (low and high):
            raise ConfigError(f"{key}={format_value(value)}: {self}")

    def __str__(self) -> str:
        low = f"must be {'above' if self.above else 'at least'} {self.low:g}"
        if self.high == math.inf:
            return low
        high = self.high if isinstance(self.high, int) else f"{self.high:.10g}"
        return f"{low} and {'at most' if self.closed else 'below'} {high}"


@dataclass(frozen=True)
class OneOf(Constraint):
    """Text from a list. null passes, as the type decides whether it is allowed.

    `number` names the meaning of a whole number in its place; None if there is none.
    """

    choices: tuple[str, ...]
    number: str | None = None

    def check(self, key: str, value: Any) -> None:
        if value is None or value in self.choices or (self.number is not None and type(value) is int):
            return
        raise ConfigError(f"{key}={format_value(value)}: no such choice; {self.remedy(str(value))}")

    def remedy(self, wrong: str = "") -> str:
        """Return the advice for a text that is no choice, or for another value."""
        return suggest_names(wrong, self.choices) + (f", or {self.number}" if self.number else "")


@dataclass(frozen=True)
class Word(Constraint):
    """Text must be `word`; numbers and booleans pass. `rule` tells the user what the value must be."""

    word: str
    rule: str

    def check(self, key: str, value: Any) -> None:
        if isinstance(value, str) and value != self.word:
            raise ConfigError(f"{key}={value}: {self.rule}")


@dataclass(frozen=True)
class NotEmpty(Constraint):
    """Text that is not empty. `remedy` tells the user what to write."""

    remedy: str

    def check(self, key: str, value: Any) -> None:
        if value == "":
            raise ConfigError(f"{key} is empty; {self.remedy}")

    def __str__(self) -> str:
        return "not empty"


@dataclass(frozen=True)
class Matches(Constraint):
    """Text that a pattern matches as a whole. `rule` tells the user what the value must be."""

    pattern: re.Pattern[str]
    rule: str

    def check(self, key: str, value: Any) -> None:
        if isinstance(value, str) and not self.pattern.fullmatch(value):
            raise ConfigError(f"{key}={shorten(format_value(value))}: {self.rule}")


@dataclass(frozen=True)
class LocalPath(Constraint):
    """A file, a folder or a glob. ~ at its beginning is the home directory: config/read.py puts it there."""

    def check(self, key: str, value: Any) -> None:
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{key}={value.split(chr(0))[0]}\\0...: a path can't hold a null character; leave it out")
        if isinstance(value, str) and not self._is_short(value):
            raise ConfigError(
                f"{key}={shorten(value)}: a path has at most {LONGEST_PATH} bytes here, and each name in it "
                f"{LONGEST_NAME}; give a shorter one, such as a link to it"
            )
        if isinstance(value, str) and value.startswith("~"):
            raise ConfigError(
                f"{key}={value}: there is no home directory of that name; write the whole path, or ./{value} for a "
                "place of that name here"
            )

    @staticmethod
    def _is_short(path: str) -> bool:
        sizes = [len(name.encode(errors="surrogateescape")) for name in (path, *path.split("/"))]
        return sizes[0] <= LONGEST_PATH and max(sizes[1:]) <= LONGEST_NAME

    def __str__(self) -> str:
        return "~ is the home directory"


@dataclass(frozen=True)
class ImageSize(Constraint):
    """A number of pixels, or a list of two: height and width. null passes."""

    def check(self, key: str, value: Any) -> None:
        if isinstance(value, list) and len(value) != 2:
            raise ConfigError(
                f"{key}={format_value(value)}: must be one number, or height and width; for example {key}=[48,64]"
            )
        COUNT.check(key, value)
        for place, side in enumerate(value if isinstance(value, list) else []):
            COUNT.check(f"{key}[{place}]", side)

    def __str__(self) -> str:
        return "at least 1; a list is [height,width]"


@dataclass(frozen=True)
class Duration(Constraint):
    """A time that `parse_duration` can read. null passes."""

    def check(self, key: str, value: Any) -> None:
        if value is not None:
            parse_duration(key, value)

    def __str__(self) -> str:
        return "minutes, h:m:s, d-h or another time as for SLURM's --time"


class Role(Flag):
    """The facts about a key beside its value, which its type says: `path: Annotated[str, Role.PLACE]`.

    A class gives the role of its keys that say none, `ROLE`.
    """

    NONE = 0
    LEARNED = 1  # it decides what is learned: a continued run must have the same value
    RULE = LEARNED | 2  # it changes what is learned from here on, but fits the state: run.resume=force may change it
    BEST = 4  # it decides which state is the best
    MEASURED = 8  # an evaluation must have the value of the training
    SEEN = MEASURED | 16  # what a model sees of an example: data that is new is prepared in the same way
    HELD_OUT = 32  # which examples are held out
    PLACE = 64  # where something lies, or how it is read: fingerprints tell its content
    MEMORY = 128  # it decides the peak of memory
    COMMAND = 256  # never that of the run that a job goes on with
    UNNAMED = 512  # no part of a derived name
    SESSION = UNNAMED | 1024  # how a process works: nothing that runs are compared by


Declared = TypeVar("Declared")

POSITIVE = Range(0, above=True)
NOT_NEGATIVE = Range(0)
COUNT = Range(1)
FRACTION = Range(0, 1)
MEAN_SHARE = Range(0, 1 - 2.0**-25)  # what is kept of a mean; float32 makes 1 of numbers from there on
SHARE = Range(0, 1, closed=True)
LOCAL_PATH = LocalPath()
CLASSES, LABELS, NUMBERS, TOKENS = "classes", "labels", "numbers", "tokens"  # forms of targets, words of many rooms
MASKS, TAGS = "masks", "tags"  # more of them: a class for each pixel, or for each word
MASKED, NEXT, EACH = "masked", "next", "each"  # what a model tells: tokens, or a class for each position
NONE = -1  # where there is no token, position or id
NOISE = ("noise_scale", "gradient_square", "gradient_variance")  # of the gradient: the scale, and its two parts
WEIGHT = "weight"  # of the examples of updates, by which sums are divided
TENSORFLOW, JAX = "tensorflow", "jax"  # values of device.runtime
LONGEST = 200  # characters of a value in a message
LONGEST_PATH, LONGEST_NAME = 3500, 255  # bytes; Linux takes 4,095 of a path, and a run adds names to its own
SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # normal numbers of float32
DURATION = re.compile(r"(?:(?P<days>[0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,6}))?(?::(?P<third>[0-9]{1,6}))?")


def is_finite_number(value: Any) -> bool:
    """Return whether it is a number that a float holds. JSON and YAML may have integers beyond all floats."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # by type, as a bool is an instance of int


def check_size(key: str, number: int | float) -> None:
    """Raise ConfigError for a whole number beyond 64 bits, or another that float32 can't hold."""
    if isinstance(number, int):
        if not -(2**63) <= number < 2**63:
            raise ConfigError(f"{key}={format_value(number)}: must be a number of at most 64 bits, so below 2**63")
    elif number and not SMALLEST <= abs(number) <= LARGEST:
        raise ConfigError(
            f"{key}={format_value(number)}: must be between {SMALLEST:.3g} and {LARGEST:.3g} apart from its sign, "
            "unless it is 0: float32 makes 0 or infinity of other numbers"
        )


# ---- the type of a value ----

Tell = Callable[[tuple[Any, ...], str, Any], str]
Read = Callable[[Any], Any]  # returns a value as a type, or raises _OddValue


def say_types(options: Iterable[Any], *_: Any) -> str:
    return f"must be {' or '.join(map(describe_type, options))}"


def convert(hint: Any, value: Any, key: str, tell: Tell = say_types) -> Any:
    """Return `value`, of JSON or YAML, as a type.

    4.0 becomes an int, an int a float, and a list a tuple where the type asks for that.

    Args:
        hint: a scalar, list[X], tuple[X, ...], tuple[X, Y], dict[str, X], a TypedDict, Any, or a union of them. Each
            may be `Annotated` with constraints, and a TypedDict with `Other`. Without that other keys are kept.
        key: the dotted key of the value; empty at the top of a file.
        tell: returns the rule in words, of the types that allow no such value, its key and the value.

    Raises:
        ConfigError: it is of another type, lacks a key, or breaks a constraint.
    """
    try:
        return _reader(hint)(value)
    except _OddValue as odd:
        for part in reversed(odd.place):
            key = f"{key}[{part}]" if isinstance(part, int) else join_key(key, part)
        raise ConfigError(odd.say(key, tell)) from odd


@dataclass(frozen=True)
class Other:
    """The type of the values of all keys that a TypedDict does not name: `Annotated[Record, Other(float | None)]`."""

    hint: Any


class _OddValue(Exception):
    """A value that is not of its type.

    Attributes:
        say: returns the message, of the key of the value and `tell`.
        place: names and numbers of the place of the value in the one that is converted, the last one first.
    """

    def __init__(self, say: Callable[[str, Tell], str]):
        super().__init__()
        self.say, self.place = say, list[str | int]()


@cache
def _reader(hint: Any) -> Read:
    """Return a function that reads values of a type. It is made once, as files hold many of them."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
    inner = [_without_constraints(option) for option in options]
    readers = [
        (_outer_test(each), _parts_reader(each, _declared(option, Other)), _declared(option, Constraint))
        for each, option in zip(inner, options, strict=True)
    ]

    def read(value: Any) -> Any:
        for is_of, read_parts, constraints in readers:
            if is_of(value):
                converted = read_parts(value)
                for constraint in constraints:
                    _check(constraint, converted)
                return converted
        raise _OddValue(
            lambda key, tell: f"{key or 'its content'}={shorten(format_value(value))}: {tell(options, key, value)}"
        )

    return read


def _check(constraint: Constraint, value: Any) -> None:
    """Raise _OddValue if a value breaks a constraint, whose message begins with the key."""
    try:
        constraint.check("", value)
    except ConfigError as error:
        said = str(error)
        raise _OddValue(lambda key, _: f"{key}{said}") from error


def _outer_test(hint: Any) -> Callable[[Any], bool]:
    """Return a function that tells if a value is of a type, as far as that shows without what is in it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is tuple:
        return lambda value: isinstance(value, list | tuple) and (parts[-1] is ... or len(parts) == len(value))
    if origin is dict or typing.is_typeddict(hint):
        return lambda value: isinstance(value, Mapping)
    if hint is int:
        return lambda value: type(value) is int or (isinstance(value, float) and value.is_integer())
    if hint is str or origin is list:
        return lambda value: isinstance(value, origin or hint)
    types = (int, float) if hint is float else (hint,)  # by type, as a bool is an instance of int
    return lambda value: type(value) in types


def _parts_reader(hint: Any, others: tuple[Other, ...]) -> Read:
    """Return a function that reads a value that passes the outer test, with all that is in it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, tuple):
        each = [_reader(part) for part in parts if part is not ...]
        readers = each if len(each) > 1 else itertools.repeat(each[0])
        return lambda value: origin(
            _read_at(index, *pair) for index, pair in enumerate(zip(readers, value, strict=False))
        )
    if origin is dict and parts[1] is not Any:
        read = _reader(parts[1])
        return lambda value: {(key := format_value(name)): _read_at(key, read, item) for name, item in value.items()}
    if origin is dict:
        return dict
    if typing.is_typeddict(hint):
        return _keys_reader(hint, *(other.hint for other in others))
    if hint is float:
        return _read_float
    return int if hint is int else lambda value: value


def _keys_reader(record: Any, other: Any = Any) -> Read:
    """Return a function that reads a TypedDict. `other` is the type of the keys that it does not name."""
    hints = typing.get_type_hints(record, include_extras=True)
    readers = {name: _reader(hint) for name, hint in hints.items()}
    required, read_other = [name for name in hints if name in record.__required_keys__], _reader(other)

    def read(value: Mapping[str, Any]) -> dict[str, Any]:
        if missing := [name for name in required if name not in value]:
            name = missing[0]
            raise _OddValue(lambda key, tell: f"{join_key(key, name)} is missing: {say_types([hints[name]])}")
        return {name: _read_at(name, readers.get(name, read_other), item) for name, item in value.items()}

    return read


def _read_at(place: str | int, read: Read, value: Any) -> Any:
    try:
        return read(value)
    except _OddValue as odd:
        odd.place.append(place)
        raise


def _read_float(value: int | float) -> float:
    if not is_finite_number(value):
        raise _OddValue(lambda key, _: f"{key}={shorten(format_value(value))}: must be a finite number")
    return float(value)


def _without_constraints(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def join_key(where: str, key: Any) -> str:
    """Return a dotted key. `where` is empty at the top."""
    return f"{where}.{key}" if where else str(key)


def shorten(text: str) -> str:
    """Return a text as it is, or the beginning of a long one."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


# ---- what a class declares ----


def constraints_of(record: type) -> dict[str, tuple[Constraint, ...]]:
    """Return the constraints that the fields of a class declare, by name of the field."""
    hints = typing.get_type_hints(record, include_extras=True)
    return {name: _declared(hint, Constraint) for name, hint in hints.items()}


def _declared(hint: Any, kind: type[Declared]) -> tuple[Declared, ...]:
    return tuple(item for item in getattr(hint, "__metadata__", ()) if isinstance(item, kind))


@cache
def roles_of(record: type) -> dict[str, Role]:
    """Return the roles of the fields of a class, by name.

    A field has the role in the type that it has in the class, or in the nearest base that gives one. A field without
    any has the `ROLE` of the class.
    """
    hints = {cls: typing.get_type_hints(cls, include_extras=True) for cls in record.__mro__}
    declared = {
        name: role
        for cls in reversed(record.__mro__)
        for name in inspect.get_annotations(cls)
        for role in _declared(hints[cls][name], Role)
    }
    by_class = getattr(record, "ROLE", Role.NONE)
    return {field.name: declared.get(field.name, by_class) for field in fields(record)}


def value_at(values: Any, key: str) -> Any:
    """Return the value at a dotted key of nested mappings; None if there is none."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def walk_values(values: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of everything in nested mappings and lists, the inner ones included."""
    items = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    for name, item in items:
        key = f"{where}[{name}]" if isinstance(values, list) else f"{where}.{name}".lstrip(".")
        yield key, item
        yield from walk_values(item, key)


def parse_duration(key: str, value: str | int) -> float:
    """Return the seconds of a time as SLURM's --time writes it: `minutes`, `h:m:s`, `d-h` and so on.

    Raises:
        ConfigError: it has another form, is 0, or is a number of 60 or more: YAML reads 1:30:00 without quotes as 5400.
    """
    if isinstance(value, int) and value >= 60:
        raise ConfigError(
            f"{key}={format_value(value)}: a time without quotes in a YAML file looks like this number, too; "
            f"for {value} minutes write {value // 60}:{value % 60:02}:00, in a YAML file in quotes"
        )
    match = DURATION.fullmatch(str(value))
    numbers = [int(group or 0) for group in match.groups()] if match else [0]
    if match is None or not any(numbers):
        raise ConfigError(
            f"{key}={format_value(value)}: must be a time above 0 as for SLURM's --time: minutes, minutes:seconds, "
            "hours:minutes:seconds, days-hours, days-hours:minutes or days-hours:minutes:seconds"
        )
    days, first, second, third = numbers
    if match["days"] or match["third"]:
        return 86400.0 * days + 3600 * first + 60 * second + third
    return 60.0 * first + second


def normal_form(name: str) -> str:
    """Return the one spelling of a name. An é may be one character or two, and looks the same."""
    return unicodedata.normalize("NFC", name)


def suggest_names(wrong: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the closest known names, or all of them."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(by_lower[match] for match in close)}?"
    return f"choose from {', '.join(by_lower.values())}"


def describe_type(hint: Any) -> str:
    """Return a type in words: "a whole number", "a list of texts"."""
    inner = _without_constraints(hint)
    origin, parts = typing.get_origin(inner), typing.get_args(inner)
    if origin is list:
        items = [_without_constraints(part) for part in parts]
        options = [each for item in items for each in typing.get_args(item) or (item,)]
        return f"a list of {' and '.join(PLURALS[each] for each in options)}" if {*options} <= {*PLURALS} else "a list"
    if origin is tuple:
        return "a list" if parts[-1] is ... else f"a list of {len(parts)}"
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, parts))
    return WORDS.get(inner, "a mapping")


def format_value(value: Any) -> str:
    """Return `value` as written on the command line: null, true, [1,2], text without quotes."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{','.join(map(format_value, value))}]"
        case dict():
            return "{" + ",".join(f"{key}:{format_value(item)}" for key, item in value.items()) + "}"
        case _:
            return str(value)
