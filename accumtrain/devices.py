"""From the device's configuration to a tf.distribute strategy; a device that is not there is a clear error."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf

from accumtrain.config import DeviceConfig
from accumtrain.environment import CPU_LIMIT
from accumtrain.errors import ConfigError


@dataclass(frozen=True)
class Devices:
    """Where a run computes: a strategy, a line that says what was found, and whether XLA compiles micro-steps."""

    strategy: tf.distribute.Strategy
    description: str
    xla: bool

    @property
    def replicas(self) -> int:
        return self.strategy.num_replicas_in_sync


def resolve(config: DeviceConfig) -> Devices:
    """Resolves device=auto|cpu|gpu|mirrored|tpu.

    Raises:
        ConfigError: the device is not there, or TensorFlow was initialised with other devices in this process.
    """
    kind = _best_kind() if config.kind == "auto" else config.kind
    strategy, found = _resolve(config, kind)
    # auto: half as fast as oneDNN on a CPU (docs/bench.md), not measured on a GPU; a TPU runs nothing else
    xla = kind == "tpu" if config.xla == "auto" else bool(config.xla)
    return Devices(strategy, found + (", XLA" if xla else ""), xla)


def _resolve(config: DeviceConfig, kind: str) -> tuple[tf.distribute.Strategy, str]:
    if kind == "tpu":
        return _tpu(config)
    gpus = tf.config.list_physical_devices("GPU")
    if kind == "gpu":
        return _gpu(config, gpus)
    if kind == "mirrored" and gpus and config.virtual is None:
        return _mirrored_gpus(config, gpus)
    return _cpu(config, kind)


def _best_kind() -> str:
    if _tpu_library():
        return "tpu"
    gpus = len(tf.config.list_physical_devices("GPU"))
    return "cpu" if gpus == 0 else "gpu" if gpus == 1 else "mirrored"


def _tpu_library() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def _tpu(config: DeviceConfig) -> tuple[tf.distribute.Strategy, str]:
    address = config.tpu or "local"
    if address == "local" and not _tpu_library():
        raise ConfigError(
            "device=tpu: no TPU runtime (libtpu) is installed here; run on a Cloud TPU VM with the tensorflow-tpu "
            "package, or name a TPU with device.tpu=<name or address>"
        )
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"device=tpu: no TPU answers at device.tpu={address}: {reason}") from error
    strategy = tf.distribute.TPUStrategy(resolver)
    return strategy, f"TPU {address}, {strategy.num_replicas_in_sync} cores"


def _gpu(config: DeviceConfig, gpus: list) -> tuple[tf.distribute.Strategy, str]:
    if not gpus:
        raise ConfigError(
            "device=gpu: TensorFlow sees no GPU; check nvidia-smi and that tensorflow[and-cuda] is installed, "
            "or use device=cpu"
        )
    _limit_gpus(config, gpus[:1])
    _set(tf.config.set_visible_devices, gpus[:1], "GPU")
    return tf.distribute.OneDeviceStrategy("/gpu:0"), _gpu_name(gpus[0])


def _mirrored_gpus(config: DeviceConfig, gpus: list) -> tuple[tf.distribute.Strategy, str]:
    _limit_gpus(config, gpus)
    strategy = tf.distribute.MirroredStrategy([f"/gpu:{index}" for index in range(len(gpus))])
    return strategy, f"{len(gpus)} x {_gpu_name(gpus[0])}, mirrored"


def _limit_gpus(config: DeviceConfig, gpus: list) -> None:
    if config.memory_limit_mb is not None:
        for gpu in gpus:
            limit = [tf.config.LogicalDeviceConfiguration(memory_limit=config.memory_limit_mb)]
            _set(tf.config.set_logical_device_configuration, gpu, limit)


def _gpu_name(gpu: tf.config.PhysicalDevice) -> str:
    return tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)


def _cpu(config: DeviceConfig, kind: str) -> tuple[tf.distribute.Strategy, str]:
    replicas = config.virtual or 1
    if kind == "mirrored" and replicas < 2:
        raise ConfigError(
            "device=mirrored: TensorFlow sees no GPU to mirror over; try replication on this CPU with "
            "device.virtual=2, or use device=cpu"
        )
    _set(tf.config.set_visible_devices, [], "GPU")
    if replicas > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        _set(tf.config.set_logical_device_configuration, cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    _take_memory_in_one_piece()
    threads = f"CPU, {os.cpu_count()} cores"
    if replicas == 1:
        return tf.distribute.get_strategy(), threads
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(replicas)])
    return strategy, f"{threads} as {replicas} virtual devices, mirrored"


@cache
def _take_memory_in_one_piece() -> None:
    """Makes the CPU's allocator ask the system for its first gigabyte at once.

    It would grow by pieces of 2, 4, 8, ... MB, and what is freed at the borders of two never joins to make room for a
    large tensor: RevNet-104's peak was up to a tenth higher (docs/memory.md). Its tables take 3 % of what it asks for,
    in memory; the rest is addresses until it is used.
    """
    # it rounds up, to a power of two or to its limit
    megabytes = min(int(os.environ.get(CPU_LIMIT, 1024)), 1024) * 9 // 10
    if megabytes < 32:
        return  # a small limit leaves no choice
    with tf.device("/cpu:0"):
        tf.raw_ops.Empty(shape=[megabytes, 2**20], dtype=tf.uint8, init=False)
    tf.config.experimental.reset_memory_stats("CPU:0")


def _set(setter: Callable[..., None], *arguments: Any) -> None:
    """Device settings hold for the process; TensorFlow refuses to change them once it has run."""
    try:
        setter(*arguments)
    except RuntimeError as error:
        raise ConfigError(
            "the devices of a process can't change once TensorFlow has used them; start a command of its own "
            "for each device instead of a sweep over devices"
        ) from error
