"""TensorFlow's log lines, which `import accumtrain` hides. `ACCUMTRAIN_TF_LOGS=1` hides nothing."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, BinaryIO

SHOW_LOGS = "ACCUMTRAIN_TF_LOGS"
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
TENSORFLOW = "tensorflow"
LOGGERS = ("tensorflow", "absl")


def hide_tensorflow_logs() -> None:
    """Make the next import of TensorFlow a quiet one, and what it does later. Do nothing if it is imported already.

    Its C++ libraries write some lines before they read LOG_LEVEL, so stderr is held back while they load.
    """
    hidden = any(isinstance(finder, _QuietFinder) for finder in sys.meta_path)
    if not hidden and TENSORFLOW not in sys.modules and os.environ.get(SHOW_LOGS) != "1":
        os.environ.setdefault(LOG_LEVEL, "3")
        sys.meta_path.insert(0, _QuietFinder())


class _QuietFinder:
    """A finder of TensorFlow alone: as the others find it, with a loader that is quiet."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != TENSORFLOW:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuietLoader(spec.loader)
        return spec


class _QuietLoader(Loader):
    """The loader of TensorFlow, which holds stderr back while it loads. The module knows only the real one."""

    def __init__(self, loader: Any):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with held_back_stderr():
            self._loader.exec_module(module)
        for name in LOGGERS:
            if (logger := logging.getLogger(name)).level < logging.ERROR:
                logger.setLevel(logging.ERROR)


@contextmanager
def held_back_stderr() -> Iterator[int]:
    """Hide the C++ logs of the body, and print them if it fails. ACCUMTRAIN_TF_LOGS=1 hides nothing.

    Yield a file descriptor of the real stderr.
    """
    if os.environ.get(SHOW_LOGS) == "1" or not _has_stderr():
        yield 2
        return
    with caught_stderr() as (kept, saved):
        try:
            yield saved
        except Exception:  # not Ctrl-C
            kept.seek(0)
            os.write(saved, kept.read())
            raise


@contextmanager
def caught_stderr() -> Iterator[tuple[BinaryIO, int]]:
    """Send all that is written to stderr in this context, by C++ code too, into a file in memory.

    Yield the file, and a file descriptor of the real stderr.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    saved = os.dup(2)
    with os.fdopen(os.memfd_create("stderr"), "w+b") as kept:  # no disk need have room for it
        os.dup2(kept.fileno(), 2)
        try:
            yield kept, saved
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _has_stderr() -> bool:
    try:
        os.fstat(2)
    except OSError:  # closed
        return False
    return True
