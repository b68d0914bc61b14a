"""What is told of a run's memory, from what TensorFlow's allocator and the system tell."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from accumtrain.console import format_bytes
from accumtrain.optim.config import SgdConfig
from accumtrain.process import environment
from accumtrain.train import memory as memory_meter
from accumtrain.train.memory import CPU, Meter, activation_bytes, at_peak, state_bytes
from tests.engine.small import lenet, window_for

KB, MB = 2**10, 2**20


@pytest.fixture
def allocator(monkeypatch):
    """What the CPU's allocator counts, in bytes."""
    counted = {"current": 300 * KB, "peak": 800 * KB}
    monkeypatch.setattr(environment, "counts_bytes_on_cpu", lambda: True)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", {CPU: counted}.__getitem__)
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", lambda device: reset(counted, device))
    return counted


def reset(counted, device):
    assert device == CPU
    counted["peak"] = counted["current"]


def rss_peak():
    """On Linux, of this process alone."""
    return KB * int(re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[1])


@pytest.mark.parametrize(("workspace", "known"), [(100 * KB, 100 * KB), (900 * KB, 700 * KB)])
def test_workspace_is_no_more_than_what_the_peak_has_beyond_the_state(allocator, monkeypatch, workspace, known):
    monkeypatch.setattr(memory_meter, "workspace_at_peak", lambda work: workspace)
    meter = Meter()
    meter.start()
    meter.measure_workspace(lambda: None)
    allocator |= {"current": 500 * KB, "peak": 1000 * KB}
    before, found, after = rss_peak(), meter.read(), rss_peak()
    assert before <= found.pop("rss_peak_bytes") <= after
    assert found == {"tensor_peak_bytes": 1000 * KB, "tensor_static_bytes": 300 * KB, "workspace_bytes": known}
    assert activation_bytes(found) == 700 * KB - known
    assert at_peak(found) == (
        f"1000.0 KB at peak: state 300.0 KB, activations {format_bytes(700 * KB - known)}, workspace {known // KB}.0 KB"
    )


def test_what_is_not_measured_is_not_told(allocator):
    meter = Meter()
    meter.start()
    found = meter.read()
    assert found["workspace_bytes"] is None
    assert activation_bytes(found) == 0
    assert "workspace" not in at_peak(found)


def test_without_a_count_nothing_is_known_but_resident_memory(monkeypatch):
    monkeypatch.setattr(environment, "counts_bytes_on_cpu", lambda: False)
    meter = Meter()
    meter.start()
    found = meter.read()
    assert found.pop("rss_peak_bytes") > 0
    assert found == dict.fromkeys(["tensor_peak_bytes", "tensor_static_bytes", "workspace_bytes"])


@pytest.mark.parametrize("missing", ["tensor_peak_bytes", "tensor_static_bytes"])
def test_a_run_of_which_something_is_missing_has_no_activations(missing):
    memory = {"tensor_peak_bytes": 10, "tensor_static_bytes": 4, "workspace_bytes": 1, missing: None}
    assert activation_bytes(memory) is None
    assert at_peak(memory) == "tensors are not counted on this device"


@pytest.mark.parametrize("error", [OSError("no folder"), tf.errors.ResourceExhaustedError(None, None, "no space\nat")])
def test_no_run_ends_for_the_measurement(error, monkeypatch, capsys):
    def fail(work):
        raise error

    monkeypatch.setattr(memory_meter, "workspace_at_peak", fail)
    meter = Meter()
    meter.devices = [CPU]
    meter.measure_workspace(lambda: None)
    assert meter.read()["workspace_bytes"] is None
    assert capsys.readouterr().err.startswith("warning: the workspace of kernels is not measured: no ")


def test_under_xla_it_is_not_measured(monkeypatch):
    monkeypatch.setattr(memory_meter, "workspace_at_peak", lambda work: pytest.fail("XLA's operation holds everything"))
    meter = Meter(xla=True)
    meter.devices = [CPU]
    meter.measure_workspace(lambda: None)
    assert meter.read()["workspace_bytes"] is None


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ((10, 4, 2), "10.0 MB at peak: state 4.0 MB, activations 4.0 MB, workspace 2.0 MB"),
        ((10, 4, None), "10.0 MB at peak: state 4.0 MB, activations 6.0 MB"),
        ((None, None, None), "tensors are not counted on this device"),
    ],
)
def test_the_parts_of_the_peak_in_words(memory, words):
    names = ("tensor_peak_bytes", "tensor_static_bytes", "workspace_bytes")
    sizes = (None if size is None else size * MB for size in memory)
    assert at_peak(dict(zip(names, sizes, strict=True))) == words


def test_the_state_by_kind():
    """LeNet-5 on 32 x 32 pixels has 61,706 weights, here with momentum, and no norms."""
    sizes = state_bytes(window_for(lenet(), SgdConfig(lr=0.1, momentum=0.9), (32, 32, 1)))
    of_weights = 4 * 61_706
    assert sizes.pop("batch_norm") == sizes.pop("ema") == 0
    assert sizes == {"weights": of_weights, "gradients": of_weights, "optimizer": of_weights}


def test_a_system_that_tells_no_peak(monkeypatch, tmp_path):
    """As gVisor's /proc."""
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t  100 kB\n")
    monkeypatch.setattr(memory_meter, "STATUS", tmp_path / "status")
    assert memory_meter._rss_peak() >= rss_peak() // 2


def test_a_child_does_not_count_the_memory_of_its_parent():
    """Linux's getrusage does, which tells at least the peak of the process that has started this one."""
    child = "from accumtrain.train.memory import _rss_peak; print(_rss_peak())"
    parent = (
        "import subprocess, sys; filled = b'x' * 2**30; del filled; "
        f"print(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True).stdout)"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    assert 50 * MB < int(done.stdout) < 1000 * MB
