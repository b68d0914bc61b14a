"""The survivors that no test can or need notice, each with the reason: explained.yaml."""

from __future__ import annotations

from pathlib import Path

import yaml

FILE = Path(__file__).with_name("explained.yaml")


def read_explained() -> dict[str, dict[str, str]]:
    """File of the package -> name of the mutant -> the reason."""
    entries = yaml.safe_load(FILE.read_text())
    return {path: {each["mutant"]: each["why"] for each in listed} for path, listed in entries.items()}
