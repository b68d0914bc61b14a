"""Children that need not import TensorFlow: this process has, and has not yet initialised its devices.

A fork of a process whose TensorFlow computes would wait forever for threads that it does not have.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

IMPORTED = ("numpy", "tensorflow", "keras", "hydra", "pytest", "psutil", "matplotlib", "tensorflow_datasets")
TIMED_OUT = -1


def warm_up() -> None:
    """Imports what all tests import, but nothing of the rooms that are mutated."""
    from accumtrain.process import environment, tpu_runtime

    os.environ.update(environment.VARIABLES | tpu_runtime.quiet_environment(), TF_CPP_MIN_LOG_LEVEL="3")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # pytest wants to import plugins before anyone else does
    sys.dont_write_bytecode = True
    with environment.held_back_stderr():
        for name in IMPORTED:
            importlib.import_module(name)
    from tensorflow.python.autograph.core import config  # not public

    # autograph would compile the functions of the package anew, from their files
    config.CONVERSION_RULES = (config.DoNotConvert("accumtrain"), *config.CONVERSION_RULES)
    assert not environment.computes_already(), "a fork of a TensorFlow that computes would hang"
    for name in [name for name in sys.modules if name.startswith("accumtrain")]:
        del sys.modules[name]


def start(function: Callable[[], int | None], log: Path) -> int:
    """Runs a function in a child, in a session of its own, its output in `log`. Returns the child's process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(file, stream)
        code = function() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the ends of threads and of the parent's exit handlers


def wait_for_one(limits: dict[int, float]) -> tuple[int, int]:
    """Waits until a child ends, or kills one, with what it has started, that is past its limit.

    Args:
        limits: when each child must have ended, by its id, in seconds of time.monotonic().

    Returns:
        Its id and exit status; TIMED_OUT if it was killed.
    """
    while True:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            return child, os.waitstatus_to_exitcode(status)
        for late in [child for child, limit in limits.items() if time.monotonic() > limit]:
            os.killpg(late, signal.SIGKILL)
            os.waitpid(late, 0)
            return late, TIMED_OUT
        time.sleep(0.05)


class InPlaceOf(MetaPathFinder):
    """Imports one module of the package from another source; no file is written."""

    def __init__(self, root: Path, path: str, source: str):
        self.name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.file, self.code = str(root / path), compile(source, str(root / path), "exec")

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return spec_from_file_location(fullname, self.file, loader=_Loader(fullname, self.file, self.code))


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, code: CodeType):
        super().__init__(fullname, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code
