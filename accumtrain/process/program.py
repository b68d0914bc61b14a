"""How this program is started once more, for a child: `accumtrain` itself, or the file of a user who calls main()."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

VARIABLE = "ACCUMTRAIN_PROGRAM"  # environment variable: launchers hand it on to their processes
CHILD = "--child"


def remember_program(main: Mapping[str, Any]) -> None:
    """Takes the module with the globals `main`, which runs as __main__, for the program of all children."""
    spec, file = main.get("__spec__"), main.get("__file__")
    if spec is not None:
        os.environ[VARIABLE] = json.dumps(["-m", spec.name.removesuffix(".__main__")])
    elif file is not None:
        os.environ[VARIABLE] = json.dumps([os.path.abspath(file)])  # noqa: PTH100 (links stay)


def own_program() -> list[str]:
    """The command that starts this program; arguments follow it."""
    return [sys.executable, *json.loads(os.environ.get(VARIABLE, '["-m", "accumtrain"]'))]


def child_command() -> list[str]:
    """The command of a child that serves a request; its folder follows."""
    return [*own_program(), CHILD]
