"""Several processes, on one machine or on many, each with its own devices: all-reduce over gRPC or NCCL."""

from __future__ import annotations

import tensorflow as tf

# tf.distribute.MultiWorkerMirroredStrategy takes one CPU device of each worker and waits for others without end
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    CollectiveAllReduceExtended,
    coordination_config_pb2,  # its place differs between releases
)
from tensorflow.python.eager.context import context

from accumtrain.devices.cluster import Cluster
from accumtrain.errors import ConfigError

HEARTBEAT = 20  # seconds of silence after which a worker counts as lost
JOB = "worker"


class MultiWorkerStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """A replica on each of `devices` devices of each worker. Waits for the other workers to start.

    Args:
        kind: "CPU" or "GPU".
        timeout: seconds to wait for the others, at the start and in a collective operation.

    Raises:
        ConfigError: the others did not come in time, or TensorFlow already runs in this process.
    """

    def __init__(self, cluster: Cluster, devices: int, kind: str, timeout: int):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({JOB: list(cluster.workers)}), task_type=JOB, task_id=cluster.index, rpc_layer="grpc"
        )
        context().configure_coordination_service(
            service_type="standalone",
            service_leader=f"/job:{JOB}/replica:0/task:0",
            cluster_register_timeout_in_ms=1000 * timeout,
            heartbeat_timeout_in_ms=1000 * HEARTBEAT,
            shutdown_barrier_timeout_in_ms=1000 * HEARTBEAT,
            coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name=JOB, num_tasks=len(cluster.workers))],
        )
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=float(timeout))
        try:
            extended = _Extended(self, resolver, options, devices, kind)
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            raise ConfigError(_no_cluster(cluster, timeout, error)) from error
        tf.distribute.Strategy.__init__(self, extended)


class _Extended(CollectiveAllReduceExtended):
    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        options: tf.distribute.experimental.CommunicationOptions,
        devices: int,
        kind: str,
    ):
        self._wanted = devices, kind
        super().__init__(strategy, cluster_resolver=resolver, communication_options=options)

    def _initialize_local_devices(
        self, cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver, worker_device: str
    ) -> tuple[tuple[str, ...], str]:
        count, kind = self._wanted
        return tuple(f"{worker_device}/device:{kind}:{index}" for index in range(count)), kind


def _no_cluster(cluster: Cluster, timeout: int, error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"device=multiworker: worker {cluster.index} of {len(cluster.workers)}, {cluster.workers[cluster.index]}, "
        f"found no cluster within {timeout} s: {lines[0]}; check that every worker was started with the same list of "
        "workers and that its port is free and open to the others (device.timeout sets how long to wait)"
    )
