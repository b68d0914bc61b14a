"""The declaration of every key, as --help and docs/reference.md show it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated

import pytest

from accumtrain.config.keys import Key, list_all_keys, list_config_classes, list_keys, read_class_summary, read_meanings
from accumtrain.config.read import list_known_keys
from accumtrain.config.schema import Config
from accumtrain.fields import COUNT, NotEmpty, Word
from accumtrain.registry import ComponentConfig, required

CLASSES = [Config, *(cls for found in list_config_classes().values() for cls in found)]


@dataclass(kw_only=True)
class Base(ComponentConfig):
    """The base. It has more
    than a line.

    `size`: pixels
    on a side.
    `low`, `high`: bounds.

    Attributes:
        other: is no key.
    """

    size: Annotated[int | str, COUNT, Word("auto", "must be auto")] = "auto"
    low: float = 1e-3
    high: list[float] | None = None
    flag: bool = False


@dataclass(kw_only=True)
class Special(Base):
    """Another.

    `low`: said anew.
    """

    path: Annotated[str, NotEmpty("")] = required("photos")


@pytest.mark.parametrize("key", list_all_keys(), ids=lambda key: key.name)
def test_every_key_has_a_meaning_that_is_a_sentence(key):
    assert re.fullmatch(r"[A-Z0-9].*\.", key.meaning), f"{key.name}: {key.meaning!r}"
    assert "`" not in key.meaning, "--help shows plain text"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_meaning_is_that_of_a_key(cls):
    assert read_meanings(cls).keys() <= {each.name for each in fields(cls)}


def test_there_are_all_keys():
    kinds = {f"{group}.kind" for group in list_config_classes()}
    assert {key.name for key in list_all_keys()} | kinds >= set(list_known_keys())


def test_what_a_class_says_and_what_it_inherits():
    said = {"size": "Pixels on a side.", "low": "Bounds.", "high": "Bounds."}
    assert read_meanings(Base) == said
    assert read_meanings(Special) == {**said, "low": "Said anew."}
    assert read_class_summary(Base) == "The base. It has more than a line."
    assert read_class_summary(dataclass(type("Bare", (Base,), {}))) == "", "dataclass makes a docstring of its own"


def test_type_default_and_rule():
    size, low, high, flag, path = list_keys(Special, "group")
    assert size == Key(
        "group.size", "auto or a whole number", "auto", False, "at least 1", "Pixels on a side.", ("auto",)
    )
    assert (low.type, low.default, low.rule) == ("a number", "0.001", "")
    assert (high.type, high.default) == ("a list of numbers or null", "null")
    assert (flag.type, flag.default, flag.choices) == ("true or false", "false", ("true", "false"))
    assert (path.type, path.default, path.required, path.rule) == ("text", "photos", True, "not empty")
