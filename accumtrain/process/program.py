"""The command that starts this program again as a child: `accumtrain` itself, or a user's file that calls main()."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

VARIABLE = "ACCUMTRAIN_PROGRAM"  # environment variable, which the processes of launchers inherit
CHILD = "--child"


def remember_program(main: Mapping[str, Any]) -> None:
    """Makes the module that runs as __main__, whose globals are `main`, the program of all children."""
    spec, file = main.get("__spec__"), main.get("__file__")
    if spec is not None:
        os.environ[VARIABLE] = json.dumps(["-m", spec.name.removesuffix(".__main__")])
    elif file is not None:
        os.environ[VARIABLE] = json.dumps([os.path.abspath(file)])  # noqa: PTH100 (links stay)


def own_program() -> list[str]:
    """The command that starts this program, without arguments."""
    return [sys.executable, *json.loads(os.environ.get(VARIABLE, '["-m", "accumtrain"]'))]


def child_command() -> list[str]:
    """The command of a child, without the folder of its request."""
    return [*own_program(), CHILD]
