"""The CPU, the GPUs and the TPU of one process: their strategies and memory."""

from __future__ import annotations

import os
from functools import cache

import tensorflow as tf

from accumtrain.console import format_things
from accumtrain.devices.config import DeviceConfig
from accumtrain.devices.found import Devices, make_devices, set_once
from accumtrain.errors import ConfigError, first_line
from accumtrain.process import tpu_runtime
from accumtrain.process.cuda import INSTALL, VISIBLE, has_gpu_node, hides_gpus
from accumtrain.process.environment import CPU_LIMIT
from accumtrain.process.machine import count_free_addresses, count_thread_addresses

SMALLEST_PIECE = 28  # megabytes; fewer are not worth asking for at once

# ---- CPU ----


def resolve_cpu(config: DeviceConfig) -> Devices:
    """device=cpu: one replica, or one on each of device.virtual logical devices."""
    replicas = config.virtual or 1
    split_cpu(replicas)
    take_memory_in_one_piece()
    cores = f"CPU, {format_things(os.cpu_count() or 1, 'core')}"
    if replicas == 1:
        return make_devices(config, tf.distribute.get_strategy(), cores)
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(replicas)])
    return make_devices(config, strategy, f"{cores} as {replicas} virtual devices, mirrored")


def split_cpu(count: int) -> None:
    """Hide GPUs and make `count` logical devices of the CPU.

    Raises:
        ConfigError: TensorFlow was initialised with other devices in this process.
    """
    set_once(tf.config.set_visible_devices, [], "GPU")
    if count > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        set_once(tf.config.set_logical_device_configuration, cpu, [tf.config.LogicalDeviceConfiguration()] * count)


@cache
def take_memory_in_one_piece() -> int:
    """Make the CPU's allocator ask the system for its first gigabyte at once. Initialise TensorFlow's devices.

    Otherwise it grows by pieces of 2, 4, 8, ... MB. Free memory on both sides of a border can't be joined for a large
    tensor: RevNet-104's peak was up to a tenth higher (docs/allocator.md). The allocator's tables take 3 % of the
    gigabyte; the rest takes physical memory only when it is used. If addresses are limited (`ulimit -v`), it gets half
    of those that threads leave.

    Returns:
        Megabytes of the tensor for which the allocator was asked, and which it got back.
    """
    with tf.device("/cpu:0"):
        tf.constant(0)  # the devices and their threads are there from now on
        left = count_free_addresses()
        addresses_mb = 2**20 if left is None else max(0, left - count_thread_addresses()) // 2**20
        most = min(1024, int(os.environ.get(CPU_LIMIT, 1024)), addresses_mb // 2)
        megabytes = most * 9 // 10  # the allocator rounds up, to a power of two or to its limit
        if megabytes >= SMALLEST_PIECE:
            tf.raw_ops.Empty(shape=[megabytes, 2**20], dtype=tf.uint8, init=False)
    tf.config.experimental.reset_memory_stats("CPU:0")
    return megabytes


# ---- NVIDIA GPUs ----


def resolve_gpu(config: DeviceConfig) -> Devices:
    """device=gpu: the first GPU."""
    gpus = require_gpus(config.kind)[:1]
    set_up_gpus(config, gpus)
    set_once(tf.config.set_visible_devices, gpus, "GPU")
    return make_devices(config, tf.distribute.OneDeviceStrategy("/gpu:0"), read_gpu_name(gpus[0]), on_gpus=True)


def resolve_mirrored(config: DeviceConfig) -> Devices:
    """device=mirrored: a replica on each GPU, or on each of device.virtual CPU devices."""
    if config.virtual is not None:
        return resolve_cpu(config)
    try:
        gpus = require_gpus(config.kind)
    except ConfigError as error:
        raise ConfigError(f"{error}, or try replication on this CPU with device.virtual=2") from error
    set_up_gpus(config, gpus)
    strategy = tf.distribute.MirroredStrategy([f"/gpu:{index}" for index in range(len(gpus))])
    return make_devices(config, strategy, f"{len(gpus)} x {read_gpu_name(gpus[0])}, mirrored", on_gpus=True)


def require_gpus(kind: str) -> list[tf.config.PhysicalDevice]:
    """Return all GPUs of this machine.

    Raises:
        ConfigError: there is none, or TensorFlow can't use it.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return gpus
    if has_gpu_node() and hides_gpus():
        raise ConfigError(f"device={kind}: {VISIBLE}={os.environ[VISIBLE]} hides the GPUs; unset it, or name one")
    if has_gpu_node():
        raise ConfigError(
            f"device={kind}: this machine has a GPU, but TensorFlow {tf.__version__} can't use it; check that "
            "nvidia-smi shows it, and install CUDA's libraries beside TensorFlow: "
            f"{INSTALL}; accumtrain job=info says what is missing"
        )
    raise ConfigError(f"device={kind}: this machine shows no NVIDIA GPU (there is no /dev/nvidia0); use device=cpu")


def set_up_gpus(config: DeviceConfig, gpus: list[tf.config.PhysicalDevice]) -> None:
    """Set the limit and the precision of GPUs in this process, as the keys of the device say.

    TensorFlow's own default is TensorFloat-32. Gradients of a RevNet-38 then differ from those in float64 by 9e-2 of
    their size, and by 3e-6 in float32 (docs/gpu.md).
    """
    limit_gpus(config, gpus)
    tf.config.experimental.enable_tensor_float_32_execution(config.tensor_float_32)


def limit_gpus(config: DeviceConfig, gpus: list[tf.config.PhysicalDevice]) -> None:
    if config.memory_limit_mb is not None:
        for gpu in gpus:
            limit = [tf.config.LogicalDeviceConfiguration(memory_limit=config.memory_limit_mb)]
            set_once(tf.config.set_logical_device_configuration, gpu, limit)


def read_gpu_name(gpu: tf.config.PhysicalDevice) -> str:
    return tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)


# ---- Google's TPUs ----


def resolve_tpu(config: DeviceConfig) -> Devices:
    """device=tpu: all cores of the TPU at device.tpu, or of this machine's if that is null."""
    address = config.tpu or tpu_runtime.LOCAL
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ConfigError(
            f"device=tpu: no TPU answers at device.tpu={address}: {first_line(error)}; check its name and that it runs"
        ) from error
    strategy = tf.distribute.TPUStrategy(resolver)
    return make_devices(config, strategy, f"TPU {address}, {strategy.num_replicas_in_sync} cores", xla_by_itself=True)
