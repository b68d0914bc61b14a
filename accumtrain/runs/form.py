"""The form of what a JSON file holds: looked at where it is read, as anything may have been written there since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# A function that says whether a value fits; None, for null; a tuple of forms, of which one must fit; a list of the
# form of all items; a mapping from keys to forms, where `str` stands for all other keys, and where keys may be missing.
Form: TypeAlias = Any


def fits(value: Any, form: Form) -> bool:
    """Whether a value is of a form."""
    match form:
        case None:
            return value is None
        case tuple():
            return any(fits(value, each) for each in form)
        case [item]:
            return isinstance(value, list) and all(fits(each, item) for each in value)
        case Mapping():
            return isinstance(value, dict) and odd_key(value, form) is None
        case _:
            return bool(form(value))


def odd_key(content: Mapping[str, Any], form: Mapping[Any, Form]) -> str | None:
    """The first key whose value is not of its form; None if there is none."""
    for key, value in content.items():
        if not fits(value, form.get(key, form.get(str, is_anything))):
            return key
    return None


def is_anything(_: Any) -> bool:
    return True


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 that 64 bits hold."""
    return type(value) is int and 0 <= value < 2**63
