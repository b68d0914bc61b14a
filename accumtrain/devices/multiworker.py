"""Several processes, on one machine or on many, each with its own devices: all-reduce over gRPC or NCCL."""

from __future__ import annotations

import faulthandler
import os
import signal
from dataclasses import replace
from typing import Any

import tensorflow as tf

from accumtrain.console import format_things, silence
from accumtrain.devices.cluster import Cluster, find_cluster
from accumtrain.devices.config import DeviceConfig
from accumtrain.devices.found import Devices, make_devices
from accumtrain.devices.local import read_gpu_name, set_up_gpus, split_cpu, take_memory_in_one_piece
from accumtrain.devices.worker_link import WorkerMonitor, wait_for_workers
from accumtrain.errors import ConfigError, first_line
from accumtrain.process.logs import held_back_stderr
from accumtrain.process.private import CollectiveAllReduceExtended, context, coordination_config_pb2

HEARTBEAT = 20  # seconds of silence after which a worker counts as lost
JOINING = 45  # seconds that TensorFlow's runtimes have to connect
JOB = "worker"


def resolve_multiworker(config: DeviceConfig) -> Devices:
    """device=multiworker: the replicas of all processes of the cluster."""
    cluster = find_cluster(config)
    if cluster.index > 0:
        silence()
    gpus = [] if config.virtual is not None else tf.config.list_physical_devices("GPU")
    if gpus:
        set_up_gpus(config, gpus)
        local = f"{len(gpus)} x {read_gpu_name(gpus[0])}"
    else:
        split_cpu(config.virtual or 1)
        local = f"CPU, {format_things(os.cpu_count() or 1, 'core')}" + (
            f" as {config.virtual} virtual devices" if config.virtual else ""
        )
    connections = wait_for_workers(cluster, config.timeout)
    strategy = MultiWorkerStrategy(cluster, len(gpus) or config.virtual or 1, "GPU" if gpus else "CPU")
    if not gpus:
        take_memory_in_one_piece()
    workers = len(cluster.workers)
    devices = make_devices(config, strategy, f"{workers} workers, each {local}", on_gpus=bool(gpus))
    watch = WorkerMonitor(cluster.workers, connections)
    return replace(devices, worker=cluster.index, workers=workers, watch=watch)


class MultiWorkerStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """A replica on each of `devices` devices of each worker, all of which create it at the same time.

    Collective operations have no time limit of TensorFlow's. Each one would start two threads that sleep for as long
    (docs/decisions.md). A `WorkerMonitor` notices lost workers, and a `Watchdog` those that make no progress.

    Args:
        kind: "CPU" or "GPU".

    Raises:
        ConfigError: another worker went away meanwhile, or TensorFlow already runs in this process.
    """

    def __init__(self, cluster: Cluster, devices: int, kind: str):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({JOB: list(cluster.workers)}), task_type=JOB, task_id=cluster.index, rpc_layer="grpc"
        )
        context().configure_coordination_service(
            service_type="standalone",
            service_leader=f"/job:{JOB}/replica:0/task:0",
            heartbeat_timeout_in_ms=1000 * HEARTBEAT,
            shutdown_barrier_timeout_in_ms=1000 * HEARTBEAT,
            coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name=JOB, num_tasks=len(cluster.workers))],
        )
        options = tf.distribute.experimental.CommunicationOptions()
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            with held_back_stderr() as stderr:  # TensorFlow before 2.21 announces its server there
                # the runtime holds Python's GIL while it waits: if a worker dies now, only this timer can end the wait
                faulthandler.dump_traceback_later(JOINING, exit=True, file=stderr)
                extended = _Extended(devices, kind, self, cluster_resolver=resolver, communication_options=options)
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"device=multiworker: worker {cluster.index} could not join the others: {first_line(error)}; start all "
                "workers again"
            ) from error
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGTERM, on_sigterm)  # the runtime has replaced the handler
        tf.distribute.Strategy.__init__(self, extended)


class _Extended(CollectiveAllReduceExtended):
    def __init__(self, devices: int, kind: str, strategy: tf.distribute.Strategy, **arguments: Any):
        self._count_and_kind = devices, kind
        super().__init__(strategy, **arguments)

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        count, kind = self._count_and_kind
        return tuple(f"{worker_device}/device:{kind}:{index}" for index in range(count)), kind
