"""What must be settled in the process before TensorFlow is imported: log noise, the allocator, a memory limit.

TensorFlow reads these once. `ACCUMTRAIN_TF_LOGS=1` leaves its logging alone.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from accumtrain import tpu_runtime
from accumtrain.config import DeviceConfig
from accumtrain.errors import ConfigError

VARIABLES = {
    "TF_CPU_ALLOCATOR_USE_BFC": "true",  # exact byte counts, and running out of memory can be caught
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # a GPU's memory is taken as it is needed
    "KERAS_BACKEND": "tensorflow",
}
# Its kernels make a CPU twice as fast, but one that is refused memory crashes the process instead of raising an error.
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
CPU_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
# Operations one after the other, each on all cores: as fast, and never two of them holding memory at the same time.
OPERATIONS_AT_ONCE = "TF_NUM_INTEROP_THREADS"
LOGS_WANTED = "ACCUMTRAIN_TF_LOGS"
_job_started: list[float] = []
_import_seconds: list[float] = []


def job_started() -> float:
    """When the current job began, in seconds of the epoch: for the first of a process, when that began."""
    return _job_started[-1]


def tensorflow_import_seconds() -> float:
    """What importing TensorFlow took in this process, where accumtrain did it; else 0."""
    return sum(_import_seconds)


def crashes_when_refused(device: DeviceConfig) -> bool:
    """May a run on `device` end by a signal, not by an error, when it meets its memory limit?"""
    return device.memory_limit_mb is not None and device.kind != "gpu" and os.environ.get(ONEDNN) != "0"


def prepare(device: DeviceConfig, *, probed: bool = False) -> None:
    """Sets the environment for `device` and imports TensorFlow, quietly.

    Args:
        probed: what is to run is known to fit into device.memory_limit_mb, or may crash.

    Raises:
        ConfigError: TensorFlow already runs in this process with another memory limit (a sweep over limits), or there
            is no TPU for device=tpu.
    """
    limit = None if device.memory_limit_mb is None else str(device.memory_limit_mb)
    _job_started.append(time.time() if _job_started else psutil.Process().create_time())
    if "tensorflow" in sys.modules:
        if os.environ.get(CPU_LIMIT) != limit:
            raise ConfigError(
                f"device.memory_limit_mb={device.memory_limit_mb} can't change once TensorFlow runs in a process; "
                "for a sweep over it add hydra/launcher=joblib, each job then has a process of its own"
            )
        return
    if device.kind == "tpu":
        tpu_runtime.check(device.tpu)
    os.environ.update(VARIABLES | tpu_runtime.quiet_environment())
    if _on_one_cpu(device):
        os.environ.setdefault(OPERATIONS_AT_ONCE, "1")
    if limit is not None:
        os.environ[CPU_LIMIT] = limit
        if not probed:
            os.environ.setdefault(ONEDNN, "0")
    if os.environ.get(LOGS_WANTED) == "1":
        _import_tensorflow()
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with stderr_kept_back():
        _import_tensorflow()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    logging.getLogger("absl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"tensorflow|keras|google\.protobuf")


def _import_tensorflow() -> None:
    started = time.perf_counter()
    with _keras_later():
        importlib.import_module("tensorflow")
    _import_seconds.append(time.perf_counter() - started)


@contextmanager
def _keras_later() -> Iterator[None]:
    """TensorFlow imports Keras, and so matplotlib, unless it can't: 0.6 of 3 seconds and 50 MB that few runs need."""
    finder = _NoKeras()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _NoKeras(MetaPathFinder, Loader):
    """Finds Keras where it is, but can't load it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == "keras" else None
        if spec is not None:
            spec.loader = self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} is imported later")


def _on_one_cpu(device: DeviceConfig) -> bool:
    return (
        device.kind in ("auto", "cpu", "multiworker")
        and (device.virtual or 1) == 1
        and not any(Path("/dev").glob("nvidia[0-9]*"))
    )


@contextmanager
def stderr_kept_back() -> Iterator[int]:
    """Holds back what C++ logs whatever its level, unless logs are wanted, and shows it if the body fails.

    Gives a descriptor of the real stderr.
    """
    if os.environ.get(LOGS_WANTED) == "1":
        yield 2
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield saved
        except BaseException:
            kept.seek(0)
            os.write(saved, kept.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
