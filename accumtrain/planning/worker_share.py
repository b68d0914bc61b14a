"""What one of several workers computes, alone: its part of every batch, on its own devices."""

from __future__ import annotations

from dataclasses import replace

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, silence
from accumtrain.devices.cluster import find_cluster
from accumtrain.devices.found import Devices
from accumtrain.engine.all_reduce import values_of_workers
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


def with_steps_for_all(config: Config, devices: Devices, steps: int) -> Config:
    """`config` with accum.steps=auto replaced by the number of the worker with the least memory.

    Args:
        steps: what this worker has found.
    """
    if not config.accum.is_auto:
        return config
    found = values_of_workers(devices.strategy, devices.worker, devices.workers, steps)
    if min(found) < max(found):
        say(f"accum.steps={max(found)}, which worker {found.index(max(found))} needs")
    return config.with_accum_steps(max(found))
