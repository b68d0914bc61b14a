"""The device that TensorFlow computes on in a user's program."""

from __future__ import annotations

import os

import tensorflow as tf

from accumtrain.devices.found import Devices, make_devices
from accumtrain.devices.gpu import gpu_name, limit_gpus
from accumtrain.errors import ConfigError
from accumtrain.kinds.devices import DeviceConfig
from accumtrain.process.environment import computes_already


def resolve_current(config: DeviceConfig) -> Devices:
    """The first GPU, or the CPU. A memory limit takes effect in a process that does not compute yet, such as a probe.

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
        return make_devices(config, strategy, f"CPU, {os.cpu_count()} cores")
    if not computes_already():
        limit_gpus(config, gpus)
    return make_devices(config, strategy, gpu_name(gpus[0]), on_gpus=True)
