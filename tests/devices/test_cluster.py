"""Who the workers are: named in the configuration, by TF_CONFIG or by SLURM."""

import json

import pytest

from accumtrain.devices.cluster import Cluster, find_cluster
from accumtrain.errors import ConfigError

HOSTS = ["host0:2222", "host1:2222", "host2:2222"]


@pytest.fixture
def device(compose, monkeypatch):
    for name in ("TF_CONFIG", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)

    def of(*overrides):
        return compose("device=multiworker", "batch_size=48", *overrides).device

    return of


def tf_config(kind="worker", index=1, **cluster):
    return json.dumps({"cluster": cluster or {"worker": HOSTS}, "task": {"type": kind, "index": index}})


def test_named_in_the_configuration(device):
    workers = f"device.workers=[{','.join(HOSTS)}]"
    assert find_cluster(device(workers, "device.index=2")) == Cluster(tuple(HOSTS), 2)
    with pytest.raises(ConfigError, match=r"device.workers names 3 workers: .* device.index=0 to 2"):
        find_cluster(device(workers))
    with pytest.raises(ConfigError, match=r"device\.workers: worker 3 of 3; must be 0 to 2"):
        find_cluster(device(workers, "device.index=3"))


def test_named_by_tf_config(device, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config())
    assert find_cluster(device()) == Cluster(tuple(HOSTS), 1)
    monkeypatch.setenv("TF_CONFIG", tf_config("chief", 0, chief=HOSTS[:1], worker=HOSTS[1:]))
    assert find_cluster(device()) == Cluster(tuple(HOSTS), 0)
    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 0, chief=HOSTS[:1], worker=HOSTS[1:]))
    assert find_cluster(device()) == Cluster(tuple(HOSTS), 1)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", tf_config("evaluator", 0), tf_config(ps=HOSTS), tf_config("worker", "x")]
)
def test_a_tf_config_that_is_not_understood(text, device, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ConfigError, match=r"not understood .*; for example"):
        find_cluster(device())


def test_named_by_slurm(device, monkeypatch):
    variables = {"PROCID": "3", "STEP_NUM_TASKS": "4", "STEP_NODELIST": "node[7-8]", "STEP_TASKS_PER_NODE": "2(x2)"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert find_cluster(device()) == Cluster(("node7:8888", "node7:8889", "node8:8888", "node8:8889"), 3)
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    with pytest.raises(ConfigError, match="SLURM's variables are not understood"):
        find_cluster(device())


def test_named_by_nobody(device):
    with pytest.raises(ConfigError, match=r"neither device.workers nor TF_CONFIG nor a SLURM job step"):
        find_cluster(device())
