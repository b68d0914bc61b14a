"""Nothing that a user relies on changes unseen: names, keys, texts, files of runs, paths of tensors, examples.

A change that is meant: `python -m tests.frozen`, and the diff of the stored files says what it is.
"""

from __future__ import annotations

from difflib import unified_diff

import pytest

from tests.frozen.facts import FAST, SLOW
from tests.frozen.stored import FOLDER, both

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("section", [*FAST, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_facts_are_the_stored_ones(section):
    stored, now = both(section.__name__, section())
    diff = "\n".join(unified_diff(stored, now, "stored", "now", lineterm="", n=2))
    assert not diff, f"{diff}\npython -m tests.frozen {section.__name__}"


def test_each_section_is_stored():
    assert {path.stem for path in FOLDER.iterdir()} == {each.__name__ for each in (*FAST, *SLOW)}
