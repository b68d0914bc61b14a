"""The mutants that the tool makes of a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.explained import read_explained
from tests.mutation.mutations import mutants_of, read_mutants

ROOT = Path(__file__).parents[2]


def changes(source):
    """What takes the place of the second line."""
    found = {mutant.source.splitlines()[1].strip() for mutant in mutants_of("file.py", source)}
    return found - {source.splitlines()[1].strip()}


def in_function(statement):
    return changes(f"def f(x, y):\n    {statement}\n")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("z = x - y", {"z = (x + y)", "z = (x)", "z = (y - x)"}),
        ("z = x * y", {"z = (x / y)", "z = (x)"}),
        ("z = x < y", {"z = (x <= y)", "z = (not x < y)"}),
        ("z = x is y", {"z = (x is not y)"}),
        ("z = x and y", {"z = (x or y)"}),
        ("z = 0.0, 2.0", {"z = (0.001), 2.0", "z = 0.0, (2.002)"}),
        ("z = [True, 3]", {"z = [(False), 3]", "z = [True, (4)]"}),
        ("z += x", {"z -= x", "pass"}),
        ("call()", {"pass"}),
        ("z = tf.sqrt(x)", {"z = (tf.rsqrt(x))", "z = (x)"}),
        ("z = subtract(x, y)", {"z = (subtract(y, x))"}),
        ("z = minimum(x, y)", {"z = (maximum(x, y))"}),
        ("z = call(x, axis=y)", {"z = (call(x))"}),
        ("z = x if y else None", {"z = x if (not y) else None"}),
    ],
)
def test_a_statement_is_changed(statement, expected):
    assert in_function(statement) == expected


@pytest.mark.parametrize(
    "statement",
    [
        '"""A text with 3 words."""',
        "x: tuple[3] = y",
        'raise ValueError(f"{x + 1}")',
        "assert x < 1",
        "import x as y",
        "super().__init__()",
        "z = zip(*x, strict=True)",
    ],
)
def test_what_has_no_meaning_stays(statement):
    assert in_function(statement) == set()


def test_a_mutant_is_named_by_its_function_and_line():
    (mutant,) = mutants_of(
        "file.py", "class A:\n    def f(self):\n        return [\n            not self.x\n        ]\n"
    )
    assert (mutant.line, mutant.name) == (4, "A.f: not self.x => (self.x)")


def test_every_explained_mutant_is_one():
    """A line that has changed since needs its explanation anew, or none."""
    for path, reasons in read_explained().items():
        names = {mutant.name for mutant in read_mutants(ROOT, path)}
        assert set(reasons) <= names, f"{path}: {sorted(set(reasons) - names)}"
        assert all(isinstance(why, str) and why for why in reasons.values())
