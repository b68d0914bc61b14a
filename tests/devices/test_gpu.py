"""The code for GPUs, on a machine without one. docs/gpu.md says what has run on one."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.devices import local, resolve
from accumtrain.devices.config import AutoConfig, GpuConfig
from accumtrain.devices.found import make_devices
from accumtrain.errors import ConfigError
from accumtrain.keras import Accumulate
from accumtrain.optim.config import AdafactorConfig, AdamConfig
from accumtrain.process import cuda
from tests.engine.small import resnet20, revnet38, window_for
from tests.programs import run_python

PILLOW = "pillow.libs"  # a folder of libraries that nothing else finds, as those of CUDA's wheels


@pytest.fixture
def a_gpu(monkeypatch):
    """A machine that shows a GPU, which TensorFlow does not list."""
    monkeypatch.delenv(cuda.VISIBLE, raising=False)
    monkeypatch.setattr(cuda, "has_gpu_node", lambda: True)
    monkeypatch.setattr(local, "has_gpu_node", lambda: True)


def test_auto_says_that_it_leaves_a_gpu_aside(a_gpu, capsys):
    assert resolve.resolve_devices(AutoConfig()).description.startswith("CPU")
    assert "a GPU, but TensorFlow can't use it: the CPU computes. accumtrain job=info" in told(capsys)


@pytest.mark.parametrize("count", [1, 2])
def test_auto_takes_the_cpu_where_a_part_of_it_is_asked_for(a_gpu, capsys, monkeypatch, count):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"] * count)
    monkeypatch.setattr(resolve, "resolve_devices", lambda config: config)
    assert resolve.resolve_best_device(AutoConfig(virtual=2)).kind == "cpu"
    assert capsys.readouterr().err == ""
    assert resolve.resolve_best_device(AutoConfig()).kind == ("gpu" if count == 1 else "mirrored")


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_none(a_gpu, capsys, monkeypatch, hidden):
    monkeypatch.setenv(cuda.VISIBLE, hidden)
    resolve.resolve_devices(AutoConfig())
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match=rf"device=gpu: CUDA_VISIBLE_DEVICES={hidden} hides the GPUs"):
        resolve.resolve_devices(GpuConfig())


def test_a_gpu_that_tensorflow_does_not_list_is_refused(a_gpu):
    with pytest.raises(ConfigError, match=r"device=gpu: this machine has a GPU, but TensorFlow .* can't use it"):
        resolve.resolve_devices(GpuConfig())


@pytest.mark.parametrize("rounded", [False, True])
def test_products_of_float32_are_rounded_where_it_is_asked_for(rounded):
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        config = GpuConfig(tensor_float_32=rounded)
        local.set_up_gpus(config, [])
        assert tf.config.experimental.tensor_float_32_execution_enabled() == rounded
        devices = make_devices(config, tf.distribute.get_strategy(), "a GPU", on_gpus=True)
        assert devices.description == ("a GPU, TensorFloat-32" if rounded else "a GPU")
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_products_of_a_cpu_are_not_rounded():
    with pytest.raises(ConfigError, match=r"device.tensor_float_32=true: rounds .* GPUs, and there is none \(CPU, "):
        resolve.resolve_devices(AutoConfig(tensor_float_32=True))


@pytest.mark.parametrize("build", [resnet20, revnet38])
@pytest.mark.parametrize("optimizer", [AdamConfig(), AdafactorConfig()])
def test_no_variable_of_a_window_is_one_that_xla_finds_on_the_host(build, optimizer):
    """TensorFlow keeps variables of int32 on the host of a GPU, and XLA refuses programs that use them."""
    window = window_for(build(units=(1, 1)), optimizer, (8, 8, 1))
    assert tf.int32 not in {variable.dtype for variable in window.variables}


@pytest.mark.slow
def test_no_variable_of_accumulate_is_one_that_xla_finds_on_the_host():
    """Keras compiles with XLA on a GPU by itself."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="float32")])
        optimizer = Accumulate(keras.optimizers.Adam(), 2)
        model.compile(optimizer, "mse")
        model.fit(np.ones((8, 4), np.float32), np.ones((8, 2), np.float32), batch_size=4, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
    assert {"micro_step", "step_counter"} <= {variable.name for variable in optimizer.variables}
    assert "int32" not in {str(variable.dtype) for variable in optimizer.variables}


LOADING = """
import ctypes, sys
from pathlib import Path
from accumtrain.process import cuda

name = Path(sys.argv[1]).name
try:
    ctypes.CDLL(name)
except OSError:
    pass
else:
    raise AssertionError("found without being loaded")
cuda.shows_gpu = lambda: sys.argv[2] == "gpu"
cuda.load_cusolver()
ctypes.CDLL(name)
"""


@pytest.mark.parametrize(("machine", "found"), [("gpu", True), ("none", False)])
def test_cusolver_is_found_once_it_is_loaded(tmp_path, machine, found):
    """A library of Pillow plays cuSOLVER: in a folder of its own, too, and found by name only when it is loaded."""
    library = next((Path(np.__file__).parents[1] / PILLOW).glob("libjpeg*"))
    wheel = tmp_path / "nvidia" / "cusolver"
    (wheel / "lib").mkdir(parents=True)
    for package in (wheel, wheel.parent):
        (package / "__init__.py").touch()
    (wheel / "lib" / "libcusolver.so.11").symlink_to(library)
    root = Path(cuda.__file__).parents[2]
    done = run_python("-c", LOADING, library.name, machine, cwd=root, env={"PYTHONPATH": f"{tmp_path}:{root}"})
    assert (done.returncode == 0) == found, done.stderr
    assert found or "cannot open shared object file" in done.stderr


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the text of stderr without its line breaks."""
    return " ".join(capsys.readouterr().err.split())
