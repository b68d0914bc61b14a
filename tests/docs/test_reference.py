"""docs/reference.md is what the declarations say."""

from __future__ import annotations

from pathlib import Path

from accumtrain.cli.help import page

FILE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_page_is_up_to_date():
    assert FILE.read_text() == page(), "a key, a rule or a meaning has changed: make reference"
