"""From the device's configuration to a tf.distribute strategy."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from accumtrain.console import warn
from accumtrain.devices.cluster import others_in_words
from accumtrain.devices.found import Devices
from accumtrain.kinds.devices import DEVICES, CpuConfig, DeviceConfig, GpuConfig, MirroredConfig, TpuConfig
from accumtrain.process import tpu_runtime
from accumtrain.process.cuda import shows_gpu


def resolve(config: DeviceConfig) -> Devices:
    """The configured devices.

    Raises:
        ConfigError: a device is missing, or TensorFlow was initialised with other devices in this process.
    """
    devices: Devices = DEVICES.build(config)
    return devices


def resolve_best(config: DeviceConfig) -> Devices:
    """device=auto: the first that exists of a TPU, all GPUs and the CPU, or with device.virtual the CPU."""
    if (others := others_in_words()) is not None:
        warn(
            f"{others}. With device=auto this process computes alone; device=cpu, gpu or mirrored says that it is meant"
        )
    kind = CpuConfig if config.virtual else _best_kind()  # a part of the CPU is asked for
    if kind is CpuConfig and shows_gpu() and not config.virtual:
        warn(
            "this machine has a GPU, but TensorFlow can't use it: the CPU computes. accumtrain job=info says what is "
            "missing; device=cpu says that the CPU is meant"
        )
    return resolve(replace(config, kind=kind.kind))


def _best_kind() -> type[DeviceConfig]:
    if tpu_runtime.present():
        return TpuConfig
    gpus = len(tf.config.list_physical_devices("GPU"))
    return CpuConfig if gpus == 0 else GpuConfig if gpus == 1 else MirroredConfig
