"""Files of a release: the citation, the forms to report with, the changelog, and how both archives are tried."""

import subprocess
from pathlib import Path

import pytest
import yaml

from accumtrain.version import __version__

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))


def test_the_citation_has_what_its_format_requires():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert cited.keys() >= {"message", "title", "authors"}
    assert "version" not in cited, "accumtrain/version.py alone has it"
    assert all({"type", "title", "authors"} <= reference.keys() for reference in cited["references"])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_has_a_name_and_a_purpose(form):
    _, head, body = form.read_text().split("---\n", 2)
    assert yaml.safe_load(head).keys() == {"name", "about", "labels"}
    assert body.strip()


def test_there_are_forms():
    assert {form.stem for form in FORMS} == {"problem", "wish"}


def test_the_changelog_begins_with_this_version():
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].startswith(f"## {__version__} (")


def test_an_installation_that_would_test_nothing_is_refused():
    done = subprocess.run([ROOT / ".ci" / "install_dist"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no Python is named, or dist/ is empty: make dist, then .ci/install_dist" in done.stderr
