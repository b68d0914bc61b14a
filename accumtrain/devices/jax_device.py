"""device.runtime=jax: one device of JAX. TensorFlow keeps the CPU, where it traces and reads data."""

from __future__ import annotations

import os

import tensorflow as tf

from accumtrain.console import warn
from accumtrain.devices.config import CpuConfig, DeviceConfig, GpuConfig
from accumtrain.devices.found import Devices, set_once
from accumtrain.errors import ConfigError, first_line
from accumtrain.process.cuda import INSTALL_JAX, shows_gpu
from accumtrain.process.environment import CPU_LIMIT


def resolve_jax(config: DeviceConfig) -> Devices:
    """Return the configured device.

    Raises:
        ConfigError: JAX does not find it, or it was started with another one in this process.
    """
    set_once(tf.config.set_visible_devices, [], "GPU")
    import jax

    from accumtrain.pjrt.runtime import JaxRuntime

    jax.config.update("jax_enable_x64", True)  # the count of updates is an int64
    if config.kind == CpuConfig.kind:
        jax.config.update("jax_platforms", "cpu")
    try:
        device = jax.devices("gpu" if config.kind == GpuConfig.kind else None)[0]
    except RuntimeError as error:
        raise ConfigError(
            f"device={config.kind} device.runtime=jax: JAX {jax.__version__} finds no such device "
            f"({first_line(error)}); install what it needs with {INSTALL_JAX}, or choose device=cpu"
        ) from error
    if config.kind == CpuConfig.kind and device.platform != "cpu":
        raise ConfigError(
            "JAX computes on another device in this process already; for a sweep over devices add "
            "hydra/launcher=joblib, each job then has a process of its own"
        )
    if device.platform == "cpu" and config.may_compute_on_gpu and shows_gpu():
        warn(f"this machine has a GPU, but JAX can't use it: the CPU computes; {INSTALL_JAX}, or choose device=cpu")
    on_cpu = device.platform == "cpu"
    if on_cpu and config.tensor_float_32:
        raise ConfigError("device.tensor_float_32=true: rounds products of GPUs, and there is none; leave it out")
    name = f"CPU, {os.cpu_count()} cores" if on_cpu else device.device_kind
    rounded = ", TensorFloat-32" if config.tensor_float_32 else ""
    return Devices(
        tf.distribute.get_strategy(),
        f"{name}{rounded}, XLA of JAX {jax.__version__}",
        JaxRuntime(device, rounds=config.tensor_float_32, limit=_limit_bytes(config, on_cpu=on_cpu)),
    )


def _limit_bytes(config: DeviceConfig, *, on_cpu: bool) -> int | None:
    """Return the bytes that the compiled programs may take; None is no limit. A probe, or the user, may set one."""
    of_cpu = os.environ.get(CPU_LIMIT, "") if on_cpu else ""
    limit = int(of_cpu) if of_cpu.isdecimal() else config.memory_limit_mb
    return None if limit is None else limit * 2**20
