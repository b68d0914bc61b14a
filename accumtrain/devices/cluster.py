"""The processes that train together, according to the configuration, TF_CONFIG or SLURM."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

from accumtrain.devices.config import DeviceConfig
from accumtrain.errors import ConfigError

FIRST_PORT = 8888  # under SLURM
PORTS_OF_A_STEP = 64  # on a node: the first task has the first of them, the next tasks the next
PORT_RANGES = 256  # all of them end below the ports that Linux gives to outgoing connections
MOST_TASKS_OF_A_NODE = 1024


@dataclass(frozen=True)
class Cluster:
    """`workers`: host:port of each process, the chief first. `index`: this process."""

    workers: tuple[str, ...]
    index: int


def find_cluster(config: DeviceConfig) -> Cluster:
    """Return the cluster of device.workers and device.index, else of TF_CONFIG, else of a SLURM job step.

    Raises:
        ConfigError: there is none of these, or its value is invalid.
    """
    if config.workers:
        if config.index is None:
            raise ConfigError(
                "device.index=null: does not say which of device.workers this process is; count from 0, for example "
                f"device.index={len(config.workers) - 1} for the last"
            )
        return _check(Cluster(tuple(config.workers), config.index), "device.workers")
    if os.environ.get("TF_CONFIG"):
        return _check(_read_tf_config(os.environ["TF_CONFIG"]), "TF_CONFIG")
    if "SLURM_PROCID" in os.environ:
        return _check(_ask_slurm(), "SLURM")
    raise ConfigError(
        "device=multiworker: neither device.workers nor TF_CONFIG nor a SLURM job step says who the workers are; "
        "for example device.workers=[host0:2222,host1:2222] device.index=0, or srun accumtrain device=multiworker; "
        "make workers N=2 tries it on this machine"
    )


def describe_others() -> str | None:
    """Return the words for processes that the environment names beside this one; None if it names none."""
    text, tasks = os.environ.get("TF_CONFIG"), os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if text and text.strip() != "{}":
        try:
            workers = _check(_read_tf_config(text), "TF_CONFIG").workers
        except ConfigError as error:
            return str(error)
        return f"TF_CONFIG names {len(workers)} workers, whom device=multiworker joins" if len(workers) > 1 else None
    is_one = not tasks.isdecimal() or int(tasks) <= 1
    return None if is_one else f"SLURM has started {tasks} tasks, which device=multiworker joins"


def _read_tf_config(text: str) -> Cluster:
    try:
        content = json.loads(text)
        spec, task = content["cluster"], content["task"]
        kind, index = task["type"], int(task["index"])
        chiefs, workers = (list(spec.get(name, [])) for name in ("chief", "worker"))
        if kind not in ("chief", "worker") or set(spec) - {"chief", "worker"}:
            raise ValueError("only tasks chief and worker train here")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"TF_CONFIG={text}: not understood ({error}); for example "
            '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
        ) from error
    return Cluster((*chiefs, *workers), index + (len(chiefs) if kind == "worker" else 0))


def _ask_slurm() -> Cluster:
    try:
        # jobs, and steps of one job, may share a node: consecutive ones have ports of their own
        number = int(os.environ.get("SLURM_JOB_ID", 0)) + int(os.environ.get("SLURM_STEP_ID", 0))
        port = FIRST_PORT + PORTS_OF_A_STEP * (number % PORT_RANGES)
        import tensorflow as tf  # here, as the workers are asked for before it is imported

        # only for hosts and ports: SLURM decides which GPUs a task sees (--gpus-per-task)
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=port, gpus_per_node=MOST_TASKS_OF_A_NODE, gpus_per_task=1, auto_set_gpu=False
        )
        return Cluster(tuple(resolver.cluster_spec().job_tasks("worker")), int(resolver.task_id))
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise ConfigError(
            f"device=multiworker: SLURM's variables are not understood ({error}); start it with srun, one task for "
            "each worker, or name the workers with device.workers and device.index"
        ) from error


def _check(cluster: Cluster, source: str) -> Cluster:
    for worker in cluster.workers:
        if not (re.fullmatch(r".+:[0-9]{1,5}", worker) and 0 < int(worker.rpartition(":")[2]) < 2**16):
            raise ConfigError(
                f"{source}: {worker} names no worker; must be host:port with a port from 1 to 65535, for example "
                "host0:2222"
            )
    if not 0 <= cluster.index < len(cluster.workers):
        raise ConfigError(
            f"{source}: worker {cluster.index} of {len(cluster.workers)}; must be 0 to {len(cluster.workers) - 1}"
        )
    return cluster
