"""Links between pages lead somewhere, docs/api.md has every public name, and docs/reference.md every key."""

import ast
import re
from pathlib import Path

import pytest

import accumtrain
from accumtrain.cli.help import page as reference_page

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")]
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
# In docs/reference.md by their keys; that of schedules has a method to write.
BY_THEIR_KEYS = {name for name in accumtrain.__all__ if name.endswith("Config")} - {"ScheduleConfig"}


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


def test_the_reference_is_what_the_declarations_say():
    found = (ROOT / "docs" / "reference.md").read_text()
    assert found == reference_page(), "a key, a rule or a meaning has changed: make reference"


def test_every_public_name_is_on_the_page_of_names():
    of_keras = ast.parse((ROOT / "accumtrain" / "keras" / "__init__.py").read_text()).body
    imported = [alias.name for each in of_keras if isinstance(each, ast.ImportFrom) for alias in each.names]
    expected = {f"accumtrain.{name}" for name in {*accumtrain.__all__} - {"keras", "__version__"} - BY_THEIR_KEYS}
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^::: (\S+)(?:\n    options:\n      heading: (\S+))?", page, re.MULTILINE)
    assert {heading or name for name, heading in shown} == expected | {f"accumtrain.keras.{n}" for n in imported}
    assert all(f"`accumtrain.{name}`" in page for name in BY_THEIR_KEYS)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md"])
def test_files_that_engineers_are_sent_to_are_there(page):
    named = re.findall(r"`([\w/]+/[\w.]+\.(?:py|md|txt))`", (ROOT / page).read_text())
    assert named
    assert [name for name in named if not ((ROOT / name).exists() or (ROOT / "accumtrain" / name).exists())] == []


def test_every_room_is_on_the_page_of_design():
    page = (ROOT / "docs" / "design.md").read_text()
    rooms = [file.parent.name for file in (ROOT / "accumtrain").glob("*/__init__.py")]
    assert [room for room in rooms if not re.search(rf"\b{room}/", page)] == []
