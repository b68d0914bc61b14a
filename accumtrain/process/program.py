"""The command that starts this program again as a child: `accumtrain` itself, or a user's file that calls main()."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from accumtrain.config.registries import has_only_builtin_entries
from accumtrain.config.schema import Config

EXTENSIONS = "accumtrain.extensions"  # entry points of installed packages that add choices
SCRIPT = "accumtrain"  # file of the installed command
VARIABLE = "ACCUMTRAIN_PROGRAM"  # environment variable, which the processes of launchers inherit
CHILD = "--child"
WORKERS = "--workers"


def remember_program(main: Mapping[str, Any]) -> None:
    """Make the module that runs as __main__, whose globals are `main`, the program of all children."""
    spec, file = main.get("__spec__"), main.get("__file__")
    if spec is not None:
        os.environ[VARIABLE] = json.dumps(["-m", spec.name.removesuffix(".__main__")])
    elif file is not None:
        os.environ[VARIABLE] = json.dumps([os.path.abspath(file)])  # noqa: PTH100 (links stay)


def own_program() -> list[str]:
    """Return the command that starts this program, without arguments."""
    return [sys.executable, *json.loads(os.environ.get(VARIABLE, '["-m", "accumtrain"]'))]


def is_own_command() -> bool:
    """Return whether this is accumtrain's own command line, or its child, and no extension has changed it."""
    program = json.loads(os.environ.get(VARIABLE, "[]"))
    is_own = program == ["-m", "accumtrain"] or (len(program) == 1 and Path(program[0]).stem == SCRIPT)
    return is_own and not entry_points(group=EXTENSIONS)


def is_own_run(config: Config) -> bool:
    """Return whether a configuration runs accumtrain's own code alone, which its digest and version then stand for."""
    return is_own_command() and has_only_builtin_entries(config)


def child_command() -> list[str]:
    """Return the command of a child, without the folder of its request."""
    return [*own_program(), CHILD]
