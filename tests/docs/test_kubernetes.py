"""The manifests of examples/kubernetes and the Dockerfile: fields that exist, and workers that find each other."""

from __future__ import annotations

import json
import re
import shlex
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

from accumtrain.devices.cluster import find_cluster
from accumtrain.errors import ConfigError, DataError, DivergedError, OutOfMemoryError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
# the parts that are used of the schemas of JobSet 0.9 and of Kubeflow's training operator 1.9
CONTAINER = {
    "name": str,
    "image": str,
    "args": [str],
    "ports": [{"name": str, "containerPort": int}],
    "env": [{"name": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "resources": {"limits": {"nvidia.com/gpu": int}},
    "volumeMounts": [{"name": str, "mountPath": str}],
}
POD = {
    "restartPolicy": str,
    "terminationGracePeriodSeconds": int,
    "containers": [CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
}
ON_EXIT_CODES = {"containerName": str, "operator": str, "values": [int]}
JOB = {
    "completionMode": str,
    "completions": int,
    "parallelism": int,
    "backoffLimit": int,
    "podFailurePolicy": {"rules": [{"action": str, "onExitCodes": ON_EXIT_CODES}]},
    "template": {"spec": POD},
}
SHAPES = {
    "jobset.yaml": {
        "failurePolicy": {"maxRestarts": int, "rules": [{"name": str, "action": str, "onJobFailureReasons": [str]}]},
        "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": JOB}}],
    },
    "tfjob.yaml": {
        "runPolicy": {"backoffLimit": int, "cleanPodPolicy": str},
        "tfReplicaSpecs": {"Worker": {"replicas": int, "restartPolicy": str, "template": {"spec": POD}}},
    },
}


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / name).read_text())


def assert_has_shape(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, dict):
        assert isinstance(value, dict), where
        for key, item in value.items():
            assert key in shape, f"{where}.{key}: no such field"
            assert_has_shape(item, shape[key], f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for place, item in enumerate(value):
            assert_has_shape(item, shape[0], f"{where}[{place}]")
    else:
        assert type(value) is shape, where


@pytest.mark.parametrize("name", SHAPES)
def test_every_field_exists(name):
    content = manifest(name)
    assert content.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert_has_shape(content["spec"], SHAPES[name], "spec")


@pytest.fixture
def cluster(compose, monkeypatch):
    """The cluster that the arguments of a container and a TF_CONFIG make."""

    def of(container, tf_config):
        monkeypatch.setenv("TF_CONFIG", tf_config)
        return find_cluster(compose(*container["args"]).device)

    return of


def test_every_worker_of_the_jobset_finds_the_others(cluster):
    content = manifest("jobset.yaml")
    (replicated,) = content["spec"]["replicatedJobs"]
    job, name = replicated["template"]["spec"], content["metadata"]["name"]
    (container,) = job["template"]["spec"]["containers"]
    variables = {each["name"]: each for each in container["env"]}
    assert list(variables) == ["WORKER", "TF_CONFIG"], "$(WORKER) stands for a variable that is set before it"
    assert job["completions"] == job["parallelism"], "all run at once"
    port = container["ports"][0]["containerPort"]
    expected = tuple(f"{name}-{replicated['name']}-0-{index}.{name}:{port}" for index in range(job["completions"]))
    for index in range(job["completions"]):
        found = cluster(container, variables["TF_CONFIG"]["value"].replace("$(WORKER)", str(index)))
        assert (found.workers, found.index) == (expected, index)


def test_every_worker_of_the_tfjob_finds_the_others(cluster):
    """With the TF_CONFIG that the training operator makes."""
    content = manifest("tfjob.yaml")
    workers = content["spec"]["tfReplicaSpecs"]["Worker"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"
    (port,) = container["ports"]
    assert port["name"] == "tfjob-port"
    name = content["metadata"]["name"]
    hosts = [f"{name}-worker-{index}.default.svc:{port['containerPort']}" for index in range(workers["replicas"])]
    for index in range(workers["replicas"]):
        made = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}, "environment": "cloud"}
        found = cluster(container, json.dumps(made))
        assert (found.workers, found.index) == (tuple(hosts), index)


def test_only_what_a_new_start_does_not_mend_ends_the_jobset():
    (replicated,) = manifest("jobset.yaml")["spec"]["replicatedJobs"]
    (rule,) = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    lasting = (ConfigError, DataError, DivergedError, OutOfMemoryError)
    assert set(rule["onExitCodes"]["values"]) == {error.exit_code for error in lasting}


# --- the Dockerfile -----------------------------------------------------------------------------------------------


def instructions(name: str) -> list[list[str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [words[1:] for words in map(shlex.split, text.splitlines()) if words and words[0] == name]


def test_what_the_dockerfile_copies_is_there_and_all_that_the_package_needs():
    copied = {source for *sources, _ in instructions("COPY") for source in sources}
    shown = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == shown
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], "pyproject.toml"}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    assert all(any(fnmatch(each, source) for source in copied) for each in needed)


def test_the_extras_that_the_dockerfile_names_are_some():
    text = (ROOT / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"EXTRAS=(\w+)", text)
    assert set(named) == {"gpu", "joblib"} <= extras.keys()
    (listed,) = re.findall(r"^# of pyproject.toml, with commas between them: (.*)$", text, re.MULTILINE)
    assert set(listed.split(", ")) == extras.keys() - {"dev", "peers"}


@pytest.mark.parametrize("page", ["Dockerfile", "docs/cluster.md"])
def test_containers_keep_runs_and_cache_in_folders_of_the_user(page):
    variables = dict(word.split("=") for words in instructions("ENV") for word in words)
    *_, (workdir,) = instructions("WORKDIR")
    text = re.sub(r"\\\n#?", " ", (ROOT / page).read_text())
    commands = [
        shlex.split(line.lstrip("# ")) for line in text.splitlines() if line.lstrip("# ").startswith("docker run")
    ]
    assert commands
    for words in commands:
        volumes = [after.partition(":") for word, after in pairwise(words) if word == "--volume"]
        assert [(here, inside) for here, _, inside in volumes] == [
            ("$PWD/runs", f"{workdir}/runs"),
            ("$PWD/cache", variables["XDG_CACHE_HOME"]),
        ]
        assert words[words.index("--user") + 1] == "$(id -u):$(id -g)"
    assert "mkdir -p runs cache" in text, "docker would make them as root"
