"""The meter of a run's memory."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from accumtrain.optim.config import SgdConfig
from accumtrain.process import environment
from accumtrain.train import memory as memory_meter
from accumtrain.train.memory import CPU, Meter, activation_bytes, at_peak, state_bytes
from tests.engine.small import lenet, window_for

KB, MB = 2**10, 2**20


@pytest.fixture
def allocator(monkeypatch):
    """The bytes that the CPU's allocator counts."""
    counted = {"current": 300 * KB, "peak": 800 * KB}
    monkeypatch.setattr(environment, "counts_bytes_on_cpu", lambda: True)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", {CPU: counted}.__getitem__)
    reset = {CPU: lambda: counted.update(peak=counted["current"])}
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", lambda device: reset[device]())
    return counted


def rss_peak():
    """On Linux, of this process alone."""
    return KB * int(re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[1])


def test_the_peak_is_the_state_and_activations(allocator):
    meter = Meter()
    meter.start()
    assert activation_bytes(meter.read()) == 0
    allocator |= {"current": 500 * KB, "peak": 1000 * KB}
    before, found, after = rss_peak(), meter.read(), rss_peak()
    assert before <= found.pop("rss_peak_bytes") <= after
    assert found == {
        "tensor_peak_bytes": 1000 * KB,
        "tensor_static_bytes": 300 * KB,
        "peak_by_compiler": False,
    }
    assert activation_bytes(found) == 700 * KB
    assert at_peak(found) == "1000.0 KB of tensors at peak: state 300.0 KB, activations 700.0 KB"


def test_without_a_count_nothing_is_known_but_resident_memory(monkeypatch):
    monkeypatch.setattr(environment, "counts_bytes_on_cpu", lambda: False)
    meter = Meter()
    meter.start()
    found = meter.read()
    assert found.pop("rss_peak_bytes") > 0
    assert found.pop("peak_by_compiler") is False
    assert found == dict.fromkeys(["tensor_peak_bytes", "tensor_static_bytes"])


NOT_COUNTED = "no figure for tensors: nothing was computed, or TF_CPU_ALLOCATOR_USE_BFC=true is not in the environment"


@pytest.mark.parametrize("missing", ["tensor_peak_bytes", "tensor_static_bytes"])
def test_a_run_of_which_something_is_missing_has_no_activations(missing):
    memory = {"tensor_peak_bytes": 10, "tensor_static_bytes": 4, missing: None}
    assert activation_bytes(memory) is None
    assert at_peak(memory) == NOT_COUNTED


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ((10, 4), "10.0 MB of tensors at peak: state 4.0 MB, activations 6.0 MB"),
        ((None, None), NOT_COUNTED),
    ],
)
def test_the_parts_of_the_peak_in_words(memory, words):
    sizes = (None if size is None else size * MB for size in memory)
    assert at_peak(dict(zip(("tensor_peak_bytes", "tensor_static_bytes"), sizes, strict=True))) == words


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


@pytest.mark.slow
def test_a_child_does_not_count_the_memory_of_its_parent():
    """Linux's getrusage does, which tells at least the peak of the process that has started this one."""
    child = "from accumtrain.train.memory import _rss_peak; print(_rss_peak())"
    parent = (
        "import subprocess, sys; filled = b'x' * 2**30; del filled; "
        f"print(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True).stdout)"
    )
    assert 50 * MB < int(subprocess.check_output([sys.executable, "-c", parent], text=True)) < 1000 * MB
