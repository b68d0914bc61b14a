"""What one of several workers computes, alone: its part of every batch, on its own devices."""

from __future__ import annotations

from dataclasses import replace

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import silence
from accumtrain.devices.cluster import find_cluster
from accumtrain.kinds.devices import AutoConfig


def own_share(config: Config) -> Config:
    """`config` itself, or for device=multiworker what this worker does of it; probes need no other worker for that.

    Of several workers only the chief prints from now on.

    Raises:
        ConfigError: batch_size does not divide by accum.steps x workers, or nothing says who they are.
    """
    if not config.device.has_workers:
        return config
    cluster = find_cluster(config.device)
    if cluster.index > 0:
        silence()
    workers = len(cluster.workers)
    steps = 1 if config.accum.is_auto else config.accum.count
    share = steps * micro_batch_size(config.batch_size, steps, workers)
    device = config.device
    kept = {key: getattr(device, key) for key in ("virtual", "memory_limit_mb", "xla", "tensor_float_32")}
    alone = AutoConfig(**kept)
    return replace(config, batch_size=share, device=alone)
