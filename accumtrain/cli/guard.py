"""Errors in the user's words, and their exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Collection
from typing import TypeVar

from accumtrain.cli.hydra_guard import USAGE_ERRORS, explain_error, explain_plugin_error
from accumtrain.config.registries import BUILTIN_CODE, list_added_modules
from accumtrain.console import escape_lines, fail, say
from accumtrain.errors import AccumtrainError, CheckpointError, OutOfMemoryError, Preempted
from accumtrain.process.signals import INTERRUPTED, INTERRUPTED_MESSAGE
from accumtrain.train.hooks import hook_modules

NO_THREAD = "can't start new thread"  # text of the RuntimeError that Python raises
NO_MEMORY = "the system gives this process no more memory; raise `ulimit -v` and `ulimit -u`, or end other programs"
SHOW_TRACEBACK = "ACCUMTRAIN_TRACEBACK"

Result = TypeVar("Result")


def run_guarded(action: Callable[[], Result]) -> tuple[int, Result | None]:
    """Call `action`. Return 0 and its result. After an error print it, and return the exit code and None."""
    try:
        return 0, action()
    except AccumtrainError as error:
        return _tell(error), None
    except USAGE_ERRORS as error:
        return _tell(explain_error(error)), None
    except KeyboardInterrupt:
        fail(INTERRUPTED_MESSAGE)
        return INTERRUPTED, None
    except MemoryError:
        return _tell(OutOfMemoryError(NO_MEMORY)), None
    except Exception as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            reason = "give this user access to it, or choose another run.dir"
            return _tell(CheckpointError(f"{error.filename}: {error.strerror}; {reason}")), None
        if str(error) == NO_THREAD:
            return _tell(OutOfMemoryError(f"{error}: {NO_MEMORY}")), None
        if plugin := explain_plugin_error(error):
            return _tell(plugin), None
        _print_traceback()
        added = list_added_modules() | hook_modules()
        if module := _registered_module(error, added):
            fail(f"this is a bug in {module}, which adds a choice to accumtrain; the lines above show where")
        elif added:
            names = " and ".join(sorted(added))
            fail(f"this is a bug in accumtrain, or in what {names} adds to it; the lines above show where")
        else:
            fail("this is a bug in accumtrain, not a mistake of yours; please report it with the lines above")
        return 1, None


def _registered_module(error: Exception, added: Collection[str]) -> str | None:
    """Return the one of the `added` modules that has raised `error`; None if accumtrain has."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    known = [name for name in modules if name in added or name.startswith(BUILTIN_CODE)]
    return known[-1] if known and known[-1] in added else None


def _tell(error: AccumtrainError) -> int:
    if os.environ.get(SHOW_TRACEBACK) == "1":
        _print_traceback()
    (say if isinstance(error, Preempted) else fail)(str(error))
    return error.exit_code


def _print_traceback() -> None:
    sys.stderr.write(escape_lines(traceback.format_exc()))
