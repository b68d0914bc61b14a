"""The workers, named in the configuration, by TF_CONFIG or by SLURM."""

import json

import pytest

from accumtrain.devices.cluster import Cluster, find_cluster
from accumtrain.devices.resolve import resolve_devices
from accumtrain.errors import ConfigError

HOSTS = ["host0:2222", "host1:2222", "host2:2222"]
SLURM_STEP = {"PROCID": "3", "STEP_NUM_TASKS": "4", "STEP_NODELIST": "node[7-8]", "STEP_TASKS_PER_NODE": "2(x2)"}


@pytest.fixture
def device(compose, monkeypatch):
    for name in ("TF_CONFIG", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    return lambda *overrides: compose("device=multiworker", "batch_size=48", *overrides).device


def tf_config(kind="worker", index=1, **cluster):
    return json.dumps({"cluster": cluster or {"worker": HOSTS}, "task": {"type": kind, "index": index}})


def in_step(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def test_named_in_the_configuration(device):
    workers = f"device.workers=[{','.join(HOSTS)}]"
    assert find_cluster(device(workers, "device.index=2")) == Cluster(tuple(HOSTS), 2)
    with pytest.raises(ConfigError, match=r"device.index=null: .* device.index=2 for the last"):
        find_cluster(device(workers))
    with pytest.raises(ConfigError, match=r"device\.workers: worker 3 of 3; must be 0 to 2"):
        find_cluster(device(workers, "device.index=3"))


@pytest.mark.parametrize("worker", ["host0", "host0:", ":2222", "host0:0", "host0:65536", "host0:x"])
def test_a_worker_that_is_no_host_and_port(device, worker):
    assert find_cluster(device("device.workers=['[::1]:65535','host1:1']", "device.index=0")).index == 0
    with pytest.raises(ConfigError, match=rf"device\.workers: {worker} names no worker; must be host:port with a port"):
        find_cluster(device(f"device.workers=['{worker}']", "device.index=0"))


def test_a_wait_that_is_too_long(device):
    assert device("device.timeout=604800").timeout == 604800
    with pytest.raises(ConfigError, match=r"device\.timeout=604801: must be at least 1 and at most 604800"):
        device("device.timeout=604801")


@pytest.mark.parametrize(
    ("text", "index"),
    [
        (tf_config(), 1),
        (tf_config("chief", 0, chief=HOSTS[:1], worker=HOSTS[1:]), 0),
        (tf_config("worker", 0, chief=HOSTS[:1], worker=HOSTS[1:]), 1),
    ],
)
def test_named_by_tf_config(device, monkeypatch, text, index):
    monkeypatch.setenv("TF_CONFIG", text)
    assert find_cluster(device()) == Cluster(tuple(HOSTS), index)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", tf_config("evaluator", 0), tf_config(ps=HOSTS), tf_config("worker", "x")]
)
def test_a_tf_config_that_is_not_understood(text, device, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ConfigError, match=r"not understood .*; for example"):
        find_cluster(device())


def test_named_by_slurm(device, monkeypatch):
    in_step(monkeypatch, **SLURM_STEP)
    assert find_cluster(device()) == Cluster(("node7:8888", "node7:8889", "node8:8888", "node8:8889"), 3)
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    with pytest.raises(ConfigError, match="SLURM's variables are not understood"):
        find_cluster(device())


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (
            {"TF_CONFIG": tf_config(worker=HOSTS[:2])},
            "TF_CONFIG names 2 workers, whom device=multiworker joins. With device=auto this process",
        ),
        (
            {f"SLURM_{name}": value for name, value in SLURM_STEP.items()},
            "SLURM has started 4 tasks, which device=multiworker joins. With device=auto",
        ),
        ({"TF_CONFIG": tf_config(ps=HOSTS)}, "only tasks chief and worker train here"),
        ({"TF_CONFIG": tf_config("worker", 0, worker=HOSTS[:1])}, None),
        ({"TF_CONFIG": "{}"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # a batch script, which is one process
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({}, None),
    ],
)
def test_who_computes_alone_though_there_are_others_is_told(device, compose, monkeypatch, capsys, variables, told):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    resolve_devices(compose("device=auto").device)
    warned = " ".join(capsys.readouterr().err.split())
    if told is None:
        assert "alone" not in warned
        return
    assert told in warned
    resolve_devices(compose("device=cpu").device)
    assert "alone" not in capsys.readouterr().err
    if "only tasks" not in told:  # TensorFlow's parameter servers are not joined
        assert len(find_cluster(device()).workers) > 1


@pytest.fixture
def port(device, monkeypatch):
    """The port of a task, by the numbers of its SLURM job and step."""
    in_step(monkeypatch, PROCID="0", STEP_NUM_TASKS="1", STEP_NODELIST="node7", STEP_TASKS_PER_NODE="1")

    def port(job, step):
        monkeypatch.setenv("SLURM_JOB_ID", str(job))
        monkeypatch.setenv("SLURM_STEP_ID", str(step))
        ((address,), _) = vars(find_cluster(device())).values()
        return int(address.partition(":")[2])

    return port


def test_jobs_and_steps_that_share_a_node_have_ports_of_their_own(port):
    assert port(41, 0) == port(41, 0), "every task of a step finds the same"
    assert len({port(41, 0), port(42, 0), port(41, 1) + 1, port(67108864, 0) + 1}) == 4
    with pytest.raises(ConfigError, match="SLURM's variables are not understood"):
        port("x", 0)


@pytest.mark.slow
def test_ports_of_jobs_are_free_for_everybody(port):
    assert all(1024 < port(job, 0) < 32768 - 64 for job in range(300))


def test_named_by_nobody(device):
    with pytest.raises(ConfigError, match=r"neither device.workers nor TF_CONFIG nor a SLURM job step"):
        find_cluster(device())
