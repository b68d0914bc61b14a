"""device.runtime=jax: devices of JAX on this machine. TensorFlow keeps the CPU, where it traces and reads data."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from accumtrain.console import format_things, warn
from accumtrain.devices.config import CpuConfig, DeviceConfig, GpuConfig, MirroredConfig, TpuConfig
from accumtrain.devices.found import OTHER_PROCESS, Devices, set_once
from accumtrain.errors import ConfigError, first_line
from accumtrain.process.cuda import INSTALL_JAX, shows_gpu
from accumtrain.process.environment import read_users_limit
from accumtrain.process.jax_packages import import_jax
from accumtrain.process.tpu_runtime import INSTALL_JAX_TPU

if TYPE_CHECKING:
    import jax

PROGRAMS = Path("~/.cache/accumtrain/programs").expanduser()  # that JAX has compiled for a GPU or TPU
CACHE = "JAX_COMPILATION_CACHE_DIR"  # of the environment: another folder for them
LEAVE_GPUS = 'to leave GPUs to JAX, begin the program with tf.config.set_visible_devices([], "GPU")'
# The platform of the kinds that need one, and what installs it.
PLATFORMS = {
    GpuConfig.kind: ("gpu", INSTALL_JAX),
    MirroredConfig.kind: ("gpu", INSTALL_JAX),
    TpuConfig.kind: ("tpu", INSTALL_JAX_TPU),
}


def resolve_jax(config: DeviceConfig) -> Devices:
    """Return the configured devices: one, all GPUs, or device.virtual of the CPU.

    Raises:
        ConfigError: JAX can't be used or does not find them, or it computes on others in this process already.
    """
    set_once(tf.config.set_visible_devices, [], "GPU", remedy=LEAVE_GPUS if config.as_it_is else OTHER_PROCESS)
    import_jax()
    import jax

    from accumtrain.pjrt.runtime import JaxRuntime

    jax.config.update("jax_enable_x64", True)  # the count of updates is an int64
    # JAX warns of every child process; those of this package run another program at once
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
    devices = _find_devices(config)
    # compiling takes a minute on other devices, and chooses kernels by their speed
    if folder := os.environ.get(CACHE, "" if devices[0].platform == "cpu" else str(PROGRAMS)):
        _keep_programs(folder)
    if config.tensor_float_32 and devices[0].platform == "cpu":
        raise ConfigError("device.tensor_float_32=true: rounds products of GPUs, and there is none; leave it out")
    rounded = ", TensorFloat-32" if config.tensor_float_32 else ""
    return Devices(
        tf.distribute.get_strategy(),
        f"{_describe(devices)}{rounded}, XLA of JAX {jax.__version__}",
        JaxRuntime(devices, rounds=config.tensor_float_32, limit=_limit_bytes(config, devices)),
    )


def _keep_programs(folder: str) -> None:
    """Keep compiled programs in a folder, or in a cloud's bucket. A folder that can't be used is a warning."""
    import jax

    used: str | None = folder
    if "://" not in folder:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            used = None
            warn(f"compiled programs are not kept: {first_line(error)}; {CACHE} names another folder")
    jax.config.update("jax_compilation_cache_dir", used)


def _find_devices(config: DeviceConfig) -> Sequence[jax.Device]:
    import jax

    on_cpu = config.kind == CpuConfig.kind or config.virtual is not None
    if on_cpu:
        return _split_cpu(config.virtual or 1)
    platform, install = PLATFORMS.get(config.kind, (None, INSTALL_JAX))
    try:
        found = jax.devices(platform)
    except (RuntimeError, AssertionError) as error:  # the latter if JAX_PLATFORMS names none that is there
        only = jax.config.jax_platforms
        if only == "cpu":
            raise ConfigError(
                f"device={config.kind} device.runtime=jax: JAX may compute on the CPU alone, by JAX_PLATFORMS=cpu or "
                "by a job with device=cpu before this one; unset the variable, and give each job a process of its "
                "own with hydra/launcher=joblib"
            ) from error
        unset = f"unset JAX_PLATFORMS={only}, " if only else ""
        split = ", or try replication on this CPU with device.virtual=2" if config.may_compute_on_cpu else ""
        raise ConfigError(
            f"device={config.kind} device.runtime=jax: JAX {jax.__version__} finds none ({first_line(error)}); "
            f"{unset}{install}, or choose device=cpu{split}"
        ) from error
    if found[0].platform == "cpu" and shows_gpu():
        warn(f"this machine has a GPU, but JAX can't use it: the CPU computes; {INSTALL_JAX}, or choose device=cpu")
    return found[:1] if config.kind == GpuConfig.kind else found


def _split_cpu(count: int) -> Sequence[jax.Device]:
    """Make JAX compute on the CPU alone, as `count` devices, and return them."""
    import jax

    with suppress(RuntimeError):  # it computes already, maybe on as many
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    found = jax.devices("cpu")[:count]
    if len(found) < count:
        raise ConfigError(f"JAX computes on other devices in this process already; {OTHER_PROCESS}")
    return found


def _describe(devices: Sequence[jax.Device]) -> str:
    if devices[0].platform != "cpu":
        return f"{len(devices)} x {devices[0].device_kind}" if len(devices) > 1 else devices[0].device_kind
    cores = f"CPU, {format_things(os.cpu_count() or 1, 'core')}"
    return f"{cores} as {len(devices)} virtual devices" if len(devices) > 1 else cores


def _limit_bytes(config: DeviceConfig, devices: Sequence[jax.Device]) -> int | None:
    """Return the bytes that state and programs may take on a device; None is no limit."""
    of_cpu = (read_users_limit() or "") if devices[0].platform == "cpu" else ""
    limit = int(of_cpu) if config.memory_limit_mb is None and of_cpu.isdecimal() else config.memory_limit_mb
    return None if limit is None else limit * 2**20
