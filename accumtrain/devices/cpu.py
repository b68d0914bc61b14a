"""The CPU: logical devices and the allocator."""

from __future__ import annotations

import os
from functools import cache

import tensorflow as tf

from accumtrain.devices.found import Devices, make_devices
from accumtrain.devices.once import set_once
from accumtrain.kinds.devices import DeviceConfig
from accumtrain.process.environment import CPU_LIMIT
from accumtrain.process.free_memory import address_space_bytes, bytes_of_threads

SMALLEST_PIECE = 28  # megabytes that are worth to be asked for at once


def resolve_cpu(config: DeviceConfig) -> Devices:
    """device=cpu: one replica, or one on each of device.virtual logical devices."""
    replicas = config.virtual or 1
    split_cpu(replicas)
    take_memory_in_one_piece()
    cores = f"CPU, {os.cpu_count()} cores"
    if replicas == 1:
        return make_devices(config, tf.distribute.get_strategy(), cores)
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(replicas)])
    return make_devices(config, strategy, f"{cores} as {replicas} virtual devices, mirrored")


def split_cpu(count: int) -> None:
    """Hides GPUs and makes `count` logical devices of the CPU.

    Raises:
        ConfigError: TensorFlow was initialised with other devices in this process.
    """
    set_once(tf.config.set_visible_devices, [], "GPU")
    if count > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        set_once(tf.config.set_logical_device_configuration, cpu, [tf.config.LogicalDeviceConfiguration()] * count)


@cache
def take_memory_in_one_piece() -> int:
    """Makes the CPU's allocator ask the system for its first gigabyte at once. Initialises TensorFlow's devices.

    Otherwise it grows by pieces of 2, 4, 8, ... MB, and free memory on both sides of a border can't be joined for a
    large tensor: RevNet-104's peak was up to a tenth higher (docs/allocator.md). The allocator's tables take 3 % of the
    gigabyte; the rest takes physical memory only when it is used. Of addresses that are limited (`ulimit -v`) it gets
    half of what threads leave.

    Returns:
        Megabytes of the tensor for which the allocator was asked, and which it got back.
    """
    with tf.device("/cpu:0"):
        tf.constant(0)  # the devices and their threads are there from now on
        most = min(1024, int(os.environ.get(CPU_LIMIT, 1024)), _addresses_mb() // 2)
        megabytes = most * 9 // 10  # the allocator rounds up, to a power of two or to its limit
        if megabytes >= SMALLEST_PIECE:
            tf.raw_ops.Empty(shape=[megabytes, 2**20], dtype=tf.uint8, init=False)
    tf.config.experimental.reset_memory_stats("CPU:0")
    return megabytes


def _addresses_mb() -> int:
    """Megabytes of addresses for tensors; a terabyte without a limit."""
    left = address_space_bytes()
    return 2**20 if left is None else max(0, left - bytes_of_threads()) // 2**20
