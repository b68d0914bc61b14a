"""Settings that must be made before TensorFlow is imported: allocator, memory limit. TensorFlow reads them once."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from accumtrain.config.registries import REGISTRIES
from accumtrain.errors import ConfigError
from accumtrain.fields import JAX, format_value
from accumtrain.process import tpu_runtime
from accumtrain.process.cuda import load_cusolver, shows_gpu
from accumtrain.process.jax_packages import BY_TENSORFLOW, check_xla_flags, import_jax
from accumtrain.process.logs import LOG_LEVEL, SHOW_LOGS
from accumtrain.registry import load

if TYPE_CHECKING:
    from accumtrain.devices.config import DeviceConfig

ALLOCATOR = "TF_CPU_ALLOCATOR_USE_BFC"
VARIABLES = {
    ALLOCATOR: "true",  # counts bytes exactly and raises an error when memory runs out
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # takes a GPU's memory only as it is needed
    "KERAS_BACKEND": "tensorflow",
}
# oneDNN's kernels, mostly the faster ones, crash the process when memory runs out. Others raise an error.
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# 0: accumtrain's layers compute convolutions and products of 16 bits in float32, though the CPU could in 16 bits
KERNELS_16BIT = "ACCUMTRAIN_16BIT_KERNELS"
CPU_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
USERS_LIMIT = "ACCUMTRAIN_USERS_MEM_LIMIT_IN_MB"  # the user's own value of CPU_LIMIT; children inherit it, too
# Operations run one after the other, each on all cores: as fast, and no two of them hold memory at the same time.
OPERATIONS_AT_ONCE = "TF_NUM_INTEROP_THREADS"
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
# Beginnings of the names of settings of TensorFlow, its compiler and its libraries. These decide which kernels compute.
PREFIXES = (KERNELS_16BIT, "TF_", "XLA_", "ONEDNN_", "DNNL_", "MKL_", "KMP_", "OMP_", "EIGEN_", "KERAS_")

_job_started: ContextVar[float] = ContextVar("job_started")  # by time.monotonic
_import_seconds: ContextVar[float] = ContextVar("import_seconds", default=0.0)
_prepared_seconds: ContextVar[float] = ContextVar("prepared_seconds", default=0.0)

# ---- times ----


def job_seconds() -> float:
    """Return the age of the current job in seconds, by a steady clock. The first job starts with the process."""
    started = _job_started.get(None)
    return process_seconds() if started is None else time.monotonic() - started


def process_seconds() -> float:
    import psutil  # takes 10 ms, which --help has no use for

    started = psutil.Process().create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return time.time() - started
    # Linux counts from its boot, whose time it tells in whole seconds only
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (started - psutil.boot_time())


def tensorflow_import_seconds() -> float:
    """Return the seconds that accumtrain's import of TensorFlow took in this process; 0 without one."""
    return _import_seconds.get()


def prepared_seconds() -> float:
    """Return the age of the job when `prepare` ended, in seconds."""
    return _prepared_seconds.get()


# ---- variables ----


def kernel_settings() -> dict[str, str]:
    """Return the user's variables that decide which kernels compute, and how, and what a graph becomes.

    Those that `prepare` makes for every run are left out, so they are the same before and after it.
    """
    made = {*VARIABLES, CPU_LIMIT, OPERATIONS_AT_ONCE, LOG_LEVEL}
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES) and name not in made}


def crashes_when_refused(device: DeviceConfig) -> bool:
    """Return whether a run on `device` may crash, instead of raising an error, when it exceeds its limit."""
    from accumtrain.process.machine import fewer_addresses_than_memory  # with psutil, which --help has no use for

    limited = device.memory_limit_mb is not None or CPU_LIMIT in os.environ or fewer_addresses_than_memory()
    by_tensorflow = device.runtime != JAX  # JAX compares the limit with its compiler's figure before anything runs
    return limited and by_tensorflow and device.may_compute_on_cpu and os.environ.get(ONEDNN) != "0"


def prepare(device: DeviceConfig, *, probed: bool = False) -> None:
    """Set the environment for `device` and import TensorFlow, quietly.

    Args:
        probed: a probe has shown that the run fits into device.memory_limit_mb, or this process may crash.

    Raises:
        ConfigError: there is no TPU for device=tpu, or JAX can't be used. Or TensorFlow already computes in this
            process with another allocator, or with another memory limit, as in a sweep over limits.
    """
    computing = "tensorflow" in sys.modules and computes_already()
    again = _job_started.get(None) is not None
    _job_started.set(time.monotonic() - (0.0 if computing or again else process_seconds()))
    if not computing:
        _start_tensorflow(device, probed=probed)
    elif not device.as_it_is:
        _check_unchanged(device)
    _prepared_seconds.set(job_seconds())


def _start_tensorflow(device: DeviceConfig, *, probed: bool) -> None:
    look_for_device = REGISTRIES["device"][device.kind].before_tensorflow
    if look_for_device is not None:
        load(look_for_device)(device)
    load_cusolver()
    os.environ.update(VARIABLES | tpu_runtime.quiet_environment())
    if on_cpu(device) and (device.virtual or 1) == 1:
        os.environ.setdefault(OPERATIONS_AT_ONCE, "1")
    _set_limit(device)
    if device.memory_limit_mb is not None and not probed:
        os.environ.setdefault(ONEDNN, "0")
    if device.runtime == JAX:
        import_jax()  # before TensorFlow imports it, which does not report a failure
    elif device.xla is True:
        check_xla_flags(BY_TENSORFLOW)
    _import_tensorflow()
    if os.environ.get(SHOW_LOGS) != "1":
        warnings.filterwarnings("ignore", module=r"tensorflow|keras|google\.protobuf")


def computes_already() -> bool:
    """Return whether TensorFlow has initialised its devices, after which it reads no variables. It must be imported."""
    from accumtrain.process.private import is_initialized  # here, as it imports TensorFlow

    return is_initialized()


def counts_bytes_on_cpu() -> bool:
    """Return whether the CPU's allocator counts the bytes of tensors."""
    return os.environ.get(ALLOCATOR) == VARIABLES[ALLOCATOR]


def read_users_limit() -> str | None:
    """Return the user's own value of CPU_LIMIT, in whose place a job's limit may stand."""
    return os.environ.get(USERS_LIMIT, os.environ.get(CPU_LIMIT)) or None


def limit_without_job(limit_mb: int) -> None:
    """Limit jobs without a limit of their own to `limit_mb`, or to the user's own limit if that is less."""
    own = read_users_limit() or ""
    os.environ[USERS_LIMIT] = str(min([limit_mb, *([int(own)] if own.isdecimal() else [])]))


def _set_limit(device: DeviceConfig) -> None:
    """Limit TensorFlow's allocator to `_limit_of` the job, and keep the user's own limit."""
    os.environ[USERS_LIMIT] = read_users_limit() or ""
    limit = _limit_of(device)
    os.environ.pop(CPU_LIMIT, None)
    if limit is not None:
        os.environ[CPU_LIMIT] = limit


def _limit_of(device: DeviceConfig) -> str | None:
    """Return the value of CPU_LIMIT for a job: its limit, else the user's own.

    With JAX there is none: its limit is that of the compiled programs. TensorFlow only lowers them, and would crash the
    process where it gets no memory.
    """
    if device.runtime == JAX:
        return None
    return read_users_limit() if device.memory_limit_mb is None else str(device.memory_limit_mb)


def _check_unchanged(device: DeviceConfig) -> None:
    if os.environ.get(CPU_LIMIT) != _limit_of(device):
        raise ConfigError(
            f"device.memory_limit_mb={format_value(device.memory_limit_mb)} device.runtime={device.runtime}: the limit "
            "of TensorFlow's allocator can't change once it runs in a process; for a sweep over them add "
            "hydra/launcher=joblib, each job then has a process of its own"
        )
    if not counts_bytes_on_cpu():
        raise ConfigError(
            "TensorFlow has computed in this process before accumtrain could choose its allocator; make no tensors "
            f"or variables before accumtrain.main() or accumtrain.run(), or set {ALLOCATOR}=true in the environment"
        )


def _import_tensorflow() -> None:
    if "tensorflow" in sys.modules:
        return
    from accumtrain.process.machine import check_addresses  # with psutil, which --help has no use for

    check_addresses()
    started = time.perf_counter()
    with _without_keras(), _frozen():
        importlib.import_module("tensorflow")
    _import_seconds.set(time.perf_counter() - started)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable Python's garbage collection, which takes long where many objects are made that stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _frozen() -> Iterator[None]:
    """Disable garbage collection in this context, and for good for the objects that exist at its end.

    Nothing of TensorFlow's 7,000 modules and classes is ever freed. To look through them again and again took a quarter
    of its import, and a tenth of the time that a graph takes to trace.
    """
    gc.collect()  # garbage from before the freeze would stay, too
    with gc_disabled():
        try:
            yield
        finally:
            gc.freeze()


@contextmanager
def _without_keras() -> Iterator[None]:
    """Make TensorFlow look for Keras 2 in this context, so that it does not import Keras 3 and matplotlib.

    That saves 0.7 of 3 seconds and 50 MB, as few runs need Keras. Keras 3, imported later, does not read the variable.
    """
    before = os.environ.get(LEGACY_KERAS)
    os.environ[LEGACY_KERAS] = "1"
    try:
        yield
    finally:
        del os.environ[LEGACY_KERAS]
        if before is not None:
            os.environ[LEGACY_KERAS] = before


# ---- devices ----


def takes_gpu(device: DeviceConfig) -> bool:
    """Return whether the run computes on GPUs, as there is one that it may take."""
    return device.may_compute_on_gpu and device.virtual is None and shows_gpu()


def on_cpu(device: DeviceConfig) -> bool:
    """Return whether the run computes on CPUs, each as one device or as several."""
    return device.may_compute_on_cpu and not takes_gpu(device)
