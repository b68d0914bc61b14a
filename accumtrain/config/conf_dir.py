"""Where the YAML files are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path


def _find_conf_dir() -> Path:
    package = Path(__file__).resolve().parents[1]
    inside_wheel = package / "conf"
    return inside_wheel if inside_wheel.is_dir() else package.parent / "conf"


CONF_DIR = _find_conf_dir()
