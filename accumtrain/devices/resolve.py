"""From the configuration of a device to its `Devices`."""

from __future__ import annotations

import os
from dataclasses import replace

import tensorflow as tf

from accumtrain.console import format_things, warn
from accumtrain.devices.cluster import describe_others
from accumtrain.devices.config import DEVICES, CpuConfig, DeviceConfig, GpuConfig, MirroredConfig, TpuConfig
from accumtrain.devices.found import Devices, make_devices
from accumtrain.devices.local import limit_gpus, read_gpu_name
from accumtrain.errors import ConfigError
from accumtrain.fields import JAX
from accumtrain.process import tpu_runtime
from accumtrain.process.cuda import shows_gpu
from accumtrain.process.environment import computes_already


def resolve_devices(config: DeviceConfig) -> Devices:
    """Return the configured devices.

    Raises:
        ConfigError: a device is missing, or TensorFlow was initialised with other devices in this process.
    """
    if config.runtime == JAX:
        from accumtrain.devices.jax_device import resolve_jax  # few runs need it

        return resolve_jax(config)
    devices: Devices = DEVICES.build(config)
    return devices


def resolve_best_device(config: DeviceConfig) -> Devices:
    """device=auto: the first that exists of a TPU, all GPUs and the CPU, or with device.virtual the CPU."""
    if (others := describe_others()) is not None:
        warn(
            f"{others}. With device=auto this process computes alone; if that is intended, choose device=cpu, gpu or "
            "mirrored"
        )
    kind = CpuConfig if config.virtual else _find_best_kind()  # a part of the CPU is asked for
    if kind is CpuConfig and shows_gpu() and not config.virtual:
        warn(
            "this machine has a GPU, but TensorFlow can't use it: the CPU computes. accumtrain job=info says what is "
            "missing; if the CPU is intended, choose device=cpu"
        )
    return resolve_devices(replace(config, kind=kind.kind))


def _find_best_kind() -> type[DeviceConfig]:
    if tpu_runtime.explain_missing_tpu() is None:
        return TpuConfig
    gpus = len(tf.config.list_physical_devices("GPU"))
    return CpuConfig if gpus == 0 else GpuConfig if gpus == 1 else MirroredConfig


def resolve_current(config: DeviceConfig) -> Devices:
    """Return the device that TensorFlow computes on in a user's program: the first GPU, or the CPU.

    A memory limit takes effect in a process that does not compute yet, such as a probe.

    Raises:
        ConfigError: several replicas are chosen.
    """
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1:
        raise ConfigError(
            f"a strategy of {strategy.num_replicas_in_sync} replicas is in scope, but accumtrain.fit trains on one "
            "device: leave the scope, or use accumtrain.keras.accumulate and model.fit"
        )
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return make_devices(config, strategy, f"CPU, {format_things(os.cpu_count() or 1, 'core')}")
    if not computes_already():
        limit_gpus(config, gpus)
    return make_devices(config, strategy, read_gpu_name(gpus[0]), on_gpus=True)
