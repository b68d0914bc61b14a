"""Google's TPUs."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.devices.found import Devices, make_devices
from accumtrain.errors import ConfigError, first_line
from accumtrain.kinds.devices import DeviceConfig
from accumtrain.process import tpu_runtime


def resolve_tpu(config: DeviceConfig) -> Devices:
    """device=tpu: all cores of the TPU at device.tpu, or of this machine's if that is null."""
    address = config.tpu or tpu_runtime.LOCAL
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        reason = first_line(error)
        raise ConfigError(f"device=tpu: no TPU answers at device.tpu={address}: {reason}") from error
    strategy = tf.distribute.TPUStrategy(resolver)
    return make_devices(config, strategy, f"TPU {address}, {strategy.num_replicas_in_sync} cores", xla_by_itself=True)
