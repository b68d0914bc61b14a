"""job=info: a machine and its lacks, and the origin of a run. TensorFlow is never imported for it."""

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accumtrain import dispatch
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError
from accumtrain.process import cuda, jax_packages
from accumtrain.process.cuda import Gpu
from accumtrain.report import info
from tests.train.conftest import assert_error

ROOT = Path(__file__).parents[2]
BUILD = {"is_cuda_build": True, "cudnn_version": "9", "cuda_compute_capabilities": ["sm_60", "sm_89", "compute_90"]}
H100 = Gpu("NVIDIA H100", 80 * 2**30, 90, "550.54.15")
SMALL = (
    *("model=lenet5", "data=synthetic", "data.image_size=8", "data.train_examples=16", "data.test_examples=8"),
    *("optim=sgd", "batch_size=8", "accum.steps=2", "train.steps=2"),
)


def test_the_answer_needs_no_tensorflow(tmp_path):
    program = (
        "import sys; sys.argv = ['accumtrain', 'job=info']\n"
        "from accumtrain.cli.command import command\n"
        "print(command(), *{'tensorflow', 'keras', 'numpy', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"


def test_runs_of_somebody_else_which_can_only_be_read(command, monkeypatch):
    def refuse(path, value):
        raise CheckpointError(f"{path} can't be written: Read-only file system")

    monkeypatch.setattr(dispatch, "write_json", refuse)
    answer = command("job=info")
    assert (answer.code, "built with CUDA" in answer.out) == (0, True)
    assert answer.err == "warning: runs/info.json can't be written: Read-only file system\n"


def test_what_it_says_of_this_machine(command, monkeypatch, tmp_path):
    for name in info.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    answer = command("job=info")
    assert (answer.code, answer.err) == (0, "")
    assert all(said in answer.out for said in ("built with CUDA", "no environment variable that matters here is set"))
    found = json.loads((tmp_path / "runs" / "info.json").read_text())
    assert found["memory"]["bytes"] > found["memory"]["free_bytes"] > 0
    assert all(found["versions"].values())
    assert found["missing"].keys() == {"gpu", "tpu", "jax"}
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert "TF_CONFIG  {} (the workers of device=multiworker)" in command("job=info").out


@pytest.fixture
def machine(monkeypatch):
    """Make a machine, and return the answer of missing_for_gpu."""

    def with_(gpus, *, node=True, build=BUILD, absent=(), loads=False, cusolver=()):
        monkeypatch.setattr(cuda, "has_gpu_node", lambda: node)
        monkeypatch.setattr(cuda, "_absent_libraries", lambda: list(absent))
        monkeypatch.setattr(cuda, "_cusolver", lambda: list(cusolver))
        monkeypatch.setattr(cuda, "_can_load", lambda library: loads and library == "libcudnn.so.9")
        return cuda.explain_missing_gpu(build, gpus)

    return with_


def test_what_is_missing_for_a_gpu(machine):
    assert machine([H100]) is None
    assert machine([H100], absent=["nvidia-cudnn-cu12"], loads=True) is None, "the system's CUDA serves"
    remedy = r"pip install 'accumtrain\[gpu\]'"
    for missing, reason in (
        (machine([], node=False), rf"shows no NVIDIA GPU; .*{remedy}"),
        (machine([]), r"driver does not answer nvidia-smi: install"),
        (machine([H100], build={"is_cuda_build": False}), rf"built without CUDA: {remedy}"),
        (machine([H100], absent=["nvidia-cudnn-cu12"]), rf"not installed \(nvidia-cudnn-cu12, \.\.\.\): {remedy}"),
        (machine([H100], cusolver=["/x/libcusolver.so.11"]), rf"^/x/libcusolver.so.11 can't be loaded: {remedy}"),
    ):
        assert re.search(reason, missing), missing


@pytest.mark.parametrize(("name", "capability", "said"), [("NVIDIA B200", 100, "10.0"), ("Tesla M40", 52, "5.2")])
def test_a_gpu_that_tensorflow_has_no_kernels_for(machine, name, capability, said):
    missing = machine([Gpu(name, 2**30, capability, "570.1")])
    assert f"{name} has compute capability {said}, and this TensorFlow is built for 6.0 to 9.0" in missing
    assert "without Blackwell" in missing
    newer = "use device=cpu, or device.runtime=jax after pip install 'accumtrain[jax-cuda13]'"
    assert (newer in missing) == (capability == 100)


@pytest.mark.parametrize(
    ("packages", "gpu", "tpu", "remedy"),
    [
        (["jax"], False, False, None),
        ([], False, False, "accumtrain[jax]"),
        (["jax"], True, False, "accumtrain[jax-cuda13]"),
        (["jax", "jax_cuda13_plugin"], True, False, None),
        (["jax"], False, True, "accumtrain[jax-tpu]"),
        (["jax", "libtpu"], False, True, None),
    ],
)
def test_what_is_missing_for_jax(monkeypatch, packages, gpu, tpu, remedy):
    monkeypatch.setattr(jax_packages, "OLDEST_PYTHON", (3, 10))
    monkeypatch.setattr(jax_packages, "shows_gpu", lambda: gpu)
    monkeypatch.setattr(jax_packages, "shows_tpu", lambda: tpu)
    missing = jax_packages.explain_missing_packages(dict.fromkeys(packages, "1"))
    assert missing is None if remedy is None else missing.endswith(f"not installed: pip install '{remedy}'")


def test_an_old_python_has_no_jax(monkeypatch):
    monkeypatch.setattr(jax_packages, "OLDEST_PYTHON", (3, 99))
    missing = jax_packages.explain_missing_packages({"jax": "1"})
    here = ".".join(platform.python_version_tuple()[:2])
    assert missing == f"JAX needs Python 3.99 or newer, and this is {here}: make an environment with a newer one"


def test_the_packages_of_jax_that_are_installed():
    jax = pytest.importorskip("jax")
    assert jax_packages.jax_packages()["jax"] == jax.__version__


def test_the_installed_tensorflow_says_how_it_was_built():
    import tensorflow as tf

    theirs, ours = tf.sysconfig.get_build_info(), cuda.cuda_build()
    assert ours["is_cuda_build"] == theirs["is_cuda_build"]
    assert ours.get("cuda_version") == theirs.get("cuda_version")


def test_what_nvidia_smi_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda.find_gpus() == [], "there is no driver"
    program = tmp_path / "nvidia-smi"

    def answers(text, code=0):
        program.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
        program.chmod(0o755)
        return cuda.find_gpus()

    assert answers("NVIDIA H100, 81920, 9.0, 550.54.15") == [H100]
    assert answers("Failed to initialize NVML", 9) == []
    assert answers("Tesla K80, 11441, [N/A], 390.1") == []


# ---- a run ----


@pytest.fixture(scope="module")
def trained(compose, tmp_path_factory):
    """The folder of the runs. A run `one` of 2 updates is in it."""
    folder = tmp_path_factory.mktemp("runs")
    run(compose(*SMALL, "run.name=one", f"run.dir={folder}"))
    return folder


def test_where_a_run_came_from(trained, command):
    answer = command("job=info", "run.name=one", f"run.dir={trained}")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads((trained / "info.json").read_text())
    assert found["status"] == "completed"
    assert found["provenance"] == json.loads((trained / "one" / "summary.json").read_text())["provenance"]
    assert {(each["step"], each["state"]) for each in found["checkpoints"]} == {(0, "whole"), (2, "whole")}
    size = sum(file.stat().st_size for file in (trained / "one/checkpoints/step-2").iterdir())
    assert found["checkpoints"][0]["bytes"] == size
    assert found["changed"] == {
        "batch_size": [64, 8],
        "model.kind": ["revnet", "lenet"],
        "optim.kind": ["adafactor", "sgd"],
        "data.kind": ["digits", "synthetic"],
        "data.image_size": [32, 8],
        "data.train_examples": [1024, 16],
        "data.test_examples": [256, 8],
        "accum.steps": [1, 2],
        "train.steps": [None, 2],
        "run.dir": ["runs", str(trained)],
    }
    assert "best/step-2" in answer.out


def test_a_run_that_is_damaged_is_described_all_the_same(trained, command, tmp_path):
    folder = tmp_path / "runs" / "one"
    shutil.copytree(trained / "one", folder)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    (index,) = (folder / "checkpoints/step-2").glob("*.index")
    index.write_bytes(b"")
    (folder / "config.yaml").write_text("model: [")
    (folder / "summary.json").write_text("{")
    answer = command("job=info", "run.name=one")
    assert answer.code == 0
    assert "step-2: damaged: state.index is not the file that was written" in answer.err.replace("\n", " ")
    assert "config.yaml is damaged" in answer.err
    assert "summary.json is damaged" in answer.err
    assert "no summary.json yet" not in answer.out
    after = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert after.keys() == before.keys(), "nothing is moved or mended"


def test_a_run_without_a_summary_and_one_that_has_lost_most_of_it(trained, command, tmp_path):
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_bytes((trained / "one" / "config.yaml").read_bytes())
    answer = command("job=info", "run.name=one")
    assert (answer.code, "no summary.json yet" in answer.out, "no checkpoint" in answer.out) == (0, True, True)
    (folder / "summary.json").write_text('{"status": "completed", "step": 2, "provenance": {"host": "here"}}')
    assert "started  here" in command("job=info", "run.name=one").out


@pytest.mark.slow
def test_it_names_the_split_that_chose_the_best_state(compose, command, tmp_path):
    run(compose(*SMALL, "run.name=two", f"run.dir={tmp_path}/runs", "data.val_fraction=0.25"))
    answer = command("job=info", "run.name=two")
    for row in ("train, last update ", "val ", "best on val ", "test, of the best "):
        assert f"\n  {row}" in answer.out, row


def test_a_run_that_is_not_there(trained, command):
    answer = command("job=info", "run.name=two", f"run.dir={trained}")
    assert_error(answer, CheckpointError, f"no run in {trained}/two; {trained} holds one")
