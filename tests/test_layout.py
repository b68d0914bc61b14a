"""Imports run downward only: cli -> jobs -> engine -> models, optim, data, devices -> config, runs, console, errors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import accumtrain

PACKAGE = Path(accumtrain.__file__).parent
LAYERS = [  # from the top; the members of a layer do not import each other, except in the base
    {"cli"},
    {"jobs"},
    {"engine"},
    {"models", "optim", "data", "devices"},
]
BASE = {
    "config",
    "runs",
    "console",
    "errors",
    "environment",
    "sweep",
    "hydra_errors",
    "local_workers",
    "tpu_compiler",
    "tpu_runtime",
    "usage",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """accumtrain.engine.window -> engine."""
    return [*module.split("."), ""][1]


def level(part: str) -> int:
    return next((place for place, layer in enumerate(LAYERS) if part in layer), len(LAYERS))


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole module"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_at_top(tree: ast.Module) -> set[str]:
    """What importing the module imports, functions left out."""
    top = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return imported(ast.Module(body=top, type_ignores=[]))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_run_downward(file):
    part = file.relative_to(PACKAGE).with_suffix("").parts[0]
    for name in imported(ast.parse(file.read_text())):
        if name.startswith("accumtrain.") and (other := part_of(name)) not in (part, "__version__"):
            assert level(other) > level(part) or (part in BASE and other in BASE), f"{part} imports {name}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_what_the_command_line_reads_imports_no_tensorflow(file):
    part = file.relative_to(PACKAGE).with_suffix("").parts[0]
    if part in BASE | {"cli", "__init__"}:
        heavy = {"tensorflow", "keras", "numpy", "matplotlib"}
        assert not heavy & {name.split(".")[0] for name in imported_at_top(ast.parse(file.read_text()))}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_is_one_idea(file):
    assert len(file.read_text().splitlines()) <= 300


def test_every_part_has_its_place():
    parts = {file.relative_to(PACKAGE).with_suffix("").parts[0] for file in FILES} - {"__init__"}
    assert parts <= set().union(BASE, *LAYERS)
