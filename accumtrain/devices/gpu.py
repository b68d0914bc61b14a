"""NVIDIA GPUs."""

from __future__ import annotations

import os

import tensorflow as tf

from accumtrain.devices.cpu import resolve_cpu
from accumtrain.devices.found import Devices, make_devices
from accumtrain.devices.once import set_once
from accumtrain.errors import ConfigError
from accumtrain.kinds.devices import DeviceConfig
from accumtrain.process.cuda import INSTALL, VISIBLE, has_gpu_node, hides_gpus


def resolve_gpu(config: DeviceConfig) -> Devices:
    """device=gpu: the first GPU."""
    gpus = require_gpus(config.kind)[:1]
    set_up_gpus(config, gpus)
    set_once(tf.config.set_visible_devices, gpus, "GPU")
    return make_devices(config, tf.distribute.OneDeviceStrategy("/gpu:0"), gpu_name(gpus[0]), on_gpus=True)


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
    return make_devices(config, strategy, f"{len(gpus)} x {gpu_name(gpus[0])}, mirrored", on_gpus=True)


def require_gpus(kind: str) -> list[tf.config.PhysicalDevice]:
    """All GPUs of this machine.

    Raises:
        ConfigError: there is none, or TensorFlow can't use it.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return gpus
    if has_gpu_node() and hides_gpus():
        raise ConfigError(f"device={kind}: {VISIBLE}={os.environ[VISIBLE]} hides the GPUs; leave it out, or name one")
    if has_gpu_node():
        raise ConfigError(
            f"device={kind}: this machine has a GPU, but TensorFlow {tf.__version__} can't use it; check that "
            "nvidia-smi shows it, and install CUDA's libraries beside TensorFlow: "
            f"{INSTALL}; accumtrain job=info says what is missing"
        )
    raise ConfigError(f"device={kind}: this machine shows no NVIDIA GPU (there is no /dev/nvidia0); use device=cpu")


def set_up_gpus(config: DeviceConfig, gpus: list[tf.config.PhysicalDevice]) -> None:
    """Sets what the keys of the device say of GPUs, for this process.

    TensorFlow's own default is TensorFloat-32: gradients of a RevNet-38 are then 9e-2 of their size away from those in
    float64, where float32 is 3e-6 away (docs/gpu.md).
    """
    limit_gpus(config, gpus)
    tf.config.experimental.enable_tensor_float_32_execution(config.tensor_float_32)


def limit_gpus(config: DeviceConfig, gpus: list[tf.config.PhysicalDevice]) -> None:
    """Limits the memory of each GPU to device.memory_limit_mb."""
    if config.memory_limit_mb is not None:
        for gpu in gpus:
            limit = [tf.config.LogicalDeviceConfiguration(memory_limit=config.memory_limit_mb)]
            set_once(tf.config.set_logical_device_configuration, gpu, limit)


def gpu_name(gpu: tf.config.PhysicalDevice) -> str:
    return tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
