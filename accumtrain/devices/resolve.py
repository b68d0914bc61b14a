"""Which strategy a run computes with, and in which words to say so."""

from __future__ import annotations

import os
from dataclasses import dataclass

import tensorflow as tf

from accumtrain import tpu_runtime
from accumtrain.config import DeviceConfig
from accumtrain.console import silence
from accumtrain.devices.cluster import find_cluster
from accumtrain.devices.cpu import split_cpu, take_memory_in_one_piece
from accumtrain.devices.gpu import gpu_name, limit_gpus, require_gpus
from accumtrain.devices.multiworker import MultiWorkerStrategy
from accumtrain.devices.once import set_once
from accumtrain.errors import ConfigError


@dataclass(frozen=True)
class Devices:
    """Where a run computes.

    Attributes:
        description: what was found, in one line.
        xla: does XLA compile micro-steps?
        worker, workers: which process of how many this is.
    """

    strategy: tf.distribute.Strategy
    description: str
    xla: bool
    worker: int = 0
    workers: int = 1

    @property
    def replicas(self) -> int:
        return self.strategy.num_replicas_in_sync

    @property
    def chief(self) -> bool:
        """The one process that writes and prints."""
        return self.worker == 0


def resolve(config: DeviceConfig) -> Devices:
    """Resolves device=auto|cpu|gpu|mirrored|multiworker|tpu.

    Raises:
        ConfigError: the device is not there, or TensorFlow was initialised with other devices in this process.
    """
    kind = _best_kind() if config.kind == "auto" else config.kind
    # auto: half as fast as oneDNN on a CPU (docs/bench.md), not measured on a GPU; a TPU runs nothing else
    xla = kind == "tpu" if config.xla == "auto" else bool(config.xla)
    with_xla = ", XLA" if xla else ""
    if kind == "multiworker":
        return _multiworker(config, xla, with_xla)
    strategy, found = _resolve(config, kind)
    return Devices(strategy, found + with_xla, xla)


def _resolve(config: DeviceConfig, kind: str) -> tuple[tf.distribute.Strategy, str]:
    if kind == "tpu":
        return _tpu(config)
    if kind == "gpu":
        return _gpu(config)
    if kind == "mirrored" and config.virtual is None:
        return _mirrored_gpus(config)
    return _cpu(config)


def _best_kind() -> str:
    if tpu_runtime.present():
        return "tpu"
    gpus = len(tf.config.list_physical_devices("GPU"))
    return "cpu" if gpus == 0 else "gpu" if gpus == 1 else "mirrored"


def _tpu(config: DeviceConfig) -> tuple[tf.distribute.Strategy, str]:
    address = config.tpu or tpu_runtime.LOCAL
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"device=tpu: no TPU answers at device.tpu={address}: {reason}") from error
    strategy = tf.distribute.TPUStrategy(resolver)
    return strategy, f"TPU {address}, {strategy.num_replicas_in_sync} cores"


def _gpu(config: DeviceConfig) -> tuple[tf.distribute.Strategy, str]:
    gpus = require_gpus("gpu")[:1]
    limit_gpus(config, gpus)
    set_once(tf.config.set_visible_devices, gpus, "GPU")
    return tf.distribute.OneDeviceStrategy("/gpu:0"), gpu_name(gpus[0])


def _mirrored_gpus(config: DeviceConfig) -> tuple[tf.distribute.Strategy, str]:
    try:
        gpus = require_gpus("mirrored")
    except ConfigError as error:
        raise ConfigError(f"{error}, or try replication on this CPU with device.virtual=2") from error
    limit_gpus(config, gpus)
    strategy = tf.distribute.MirroredStrategy([f"/gpu:{index}" for index in range(len(gpus))])
    return strategy, f"{len(gpus)} x {gpu_name(gpus[0])}, mirrored"


def _cpu(config: DeviceConfig) -> tuple[tf.distribute.Strategy, str]:
    replicas = config.virtual or 1
    split_cpu(replicas)
    take_memory_in_one_piece()
    cores = f"CPU, {os.cpu_count()} cores"
    if replicas == 1:
        return tf.distribute.get_strategy(), cores
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(replicas)])
    return strategy, f"{cores} as {replicas} virtual devices, mirrored"


def _multiworker(config: DeviceConfig, xla: bool, with_xla: str) -> Devices:
    cluster = find_cluster(config)
    if cluster.index > 0:
        silence()
    gpus = [] if config.virtual is not None else tf.config.list_physical_devices("GPU")
    if gpus:
        limit_gpus(config, gpus)
        local = f"{len(gpus)} x {gpu_name(gpus[0])}"
    else:
        split_cpu(config.virtual or 1)
        local = f"CPU, {os.cpu_count()} cores" + (f" as {config.virtual} virtual devices" if config.virtual else "")
    strategy = MultiWorkerStrategy(cluster, len(gpus) or config.virtual or 1, "GPU" if gpus else "CPU", config.timeout)
    if not gpus:
        take_memory_in_one_piece()
    found = f"{len(cluster.workers)} workers, each {local}" + with_xla
    return Devices(strategy, found, xla, cluster.index, len(cluster.workers))
