"""The log of allocations, the workspace that it shows, and the meter of a run."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from accumtrain.console import format_bytes
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.optim.config import SgdConfig
from accumtrain.process import environment
from accumtrain.train import memory as memory_meter
from accumtrain.train.memory import (
    CPU,
    Allocation,
    Meter,
    activation_bytes,
    at_peak,
    log_allocations,
    peak_bytes,
    state_bytes,
)
from tests.engine.small import lenet, window_for

KB, MB = 2**10, 2**20


def profile_of(threads):
    """A profile as TensorFlow writes it; events of a thread are (name, start and duration in ps, stats)."""
    space = XSpace()
    plane = space.planes.add()
    keys = {}

    def key(name, table):
        number = keys.setdefault(name, len(keys) + 1)
        table[number].name = name
        return number

    for number, (start_ns, events) in threads.items():
        line = plane.lines.add(id=number, name="worker", timestamp_ns=start_ns)
        for name, start_ps, duration_ps, stats in events:
            metadata = key(name, plane.event_metadata)
            event = line.events.add(metadata_id=metadata, offset_ps=start_ps, duration_ps=duration_ps)
            for stat_name, value in stats.items():
                stat = event.stats.add(metadata_id=key(stat_name, plane.stat_metadata))
                if isinstance(value, int):
                    stat.int64_value = value
                elif value.startswith("&"):  # a reference to a name that stands elsewhere
                    stat.ref_value = key(value[1:], plane.stat_metadata)
                else:
                    stat.str_value = value
    return space


def piece(address, operation=None):
    stats = {"addr": address, "allocation_bytes": 256, "requested_bytes": 200}
    return stats if operation is None else {"tf_op": operation, **stats}


def test_a_profile_says_when_each_piece_is_taken_and_given_back(monkeypatch):
    """Times of events count from the start of their thread's line, which is in nanoseconds."""
    space = profile_of(
        {
            7: (2, [
                ("MemoryDeallocation", 900, 0, piece(1, "&Conv")),
                ("Conv:Conv2D", 100, 400, {}),
                ("MemoryAllocation", 150, 0, piece(1, "Conv")),
                ("MemoryAllocation", 950, 0, piece(1)),
                ("MemoryDeallocation", 960, 0, piece(4)),  # taken before the log begins
            ]),
            8: (1, [
                ("MemoryAllocation", 1300, 0, piece(2)),
                ("MemoryAllocation", 1050, 0, piece(3, "Relu")),
            ]),
        }
    )  # fmt: skip

    @contextlib.contextmanager
    def profile(folder, options):
        yield
        Path(folder, "one.xplane.pb").write_bytes(space.SerializeToString())

    monkeypatch.setattr(tf.profiler.experimental, "Profile", profile)
    assert log_allocations(lambda: None) == [
        Allocation(256, 200, 2150, 2900, 2500),
        Allocation(256, 200, 2050, None, None),
        Allocation(256, 200, 2300, None, None),
        Allocation(256, 200, 2950, None, None),
    ]


def allocation(size, began, ended, operation_ended=None):
    return Allocation(size, size, began, ended, operation_ended)


@pytest.mark.parametrize(
    ("ended", "operation_ended", "is_workspace"),
    [(5, 6, True), (6, 6, True), (7, 6, False), (None, 6, False), (5, None, False)],
)
def test_workspace_is_given_back_before_the_end_of_its_operation(ended, operation_ended, is_workspace):
    assert allocation(8, 1, ended, operation_ended).is_workspace is is_workspace


def test_the_peak_is_what_is_held_at_once():
    kept, first, second = allocation(4, 0, None), allocation(8, 1, 3), allocation(16, 3, 5)
    assert peak_bytes([kept, first, second]) == 4 + 16, "what is given back at a moment makes room for what is taken"
    assert peak_bytes([]) == 0


MEASURED = """
from accumtrain.devices.config import CpuConfig
from accumtrain.process import environment
environment.prepare(CpuConfig())
import tensorflow as tf
from accumtrain.train.memory import workspace_at_peak

def convolve(images):
    return tf.raw_ops.Conv2DBackpropFilter(
        input=images, filter_sizes=[3, 3, 16, 16], out_backprop=images, strides=[1, 1, 1, 1], padding="SAME"
    )

@tf.function(autograph=False)
def of_one_operation(images):
    return tf.reduce_sum(convolve(images))

@tf.function(autograph=False)
def of_tensors(images):
    return tf.reduce_sum(tf.exp(images) * tf.exp(-images))

images = tf.random.stateless_normal([16, 32, 32, 16], [1, 2])
for work in (of_one_operation, of_tensors):
    work(images)
    print(workspace_at_peak(lambda: work(images)))
"""


def test_the_workspace_of_a_convolution_is_found():
    """TensorFlow's own kernel copies patches, nine times its input, into a workspace; elementwise operations have none.

    In a process of its own: which kernels are used is settled before TensorFlow is imported.
    """
    env = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONPATH": ":".join(sys.path)}
    printed = subprocess.check_output([sys.executable, "-c", MEASURED], env=env, text=True)
    of_convolution, of_tensors = map(int, printed.split())
    assert of_convolution >= MB  # one image's patches are 0.6 MB; as many images as a cache holds share a workspace
    assert of_tensors == 0


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


@pytest.mark.parametrize(("workspace", "known"), [(100 * KB, 100 * KB), (900 * KB, 700 * KB)])
def test_workspace_is_no_more_than_what_the_peak_has_beyond_the_state(allocator, monkeypatch, workspace, known):
    monkeypatch.setattr(memory_meter, "workspace_at_peak", lambda work: workspace)
    meter = Meter()
    meter.start()
    meter.measure_workspace(lambda: None)
    allocator |= {"current": 500 * KB, "peak": 1000 * KB}
    before, found, after = rss_peak(), meter.read(), rss_peak()
    assert before <= found.pop("rss_peak_bytes") <= after
    assert found == {
        "tensor_peak_bytes": 1000 * KB,
        "tensor_static_bytes": 300 * KB,
        "workspace_bytes": known,
        "peak_by_compiler": False,
    }
    assert activation_bytes(found) == 700 * KB - known
    assert at_peak(found) == (
        f"1000.0 KB of tensors at peak: state 300.0 KB, activations {format_bytes(700 * KB - known)}, "
        f"workspace {known // KB}.0 KB"
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
    assert found.pop("peak_by_compiler") is False
    assert found == dict.fromkeys(["tensor_peak_bytes", "tensor_static_bytes", "workspace_bytes"])


NOT_COUNTED = "no figure for tensors: nothing was computed, or TF_CPU_ALLOCATOR_USE_BFC=true is not in the environment"


@pytest.mark.parametrize("missing", ["tensor_peak_bytes", "tensor_static_bytes"])
def test_a_run_of_which_something_is_missing_has_no_activations(missing):
    memory = {"tensor_peak_bytes": 10, "tensor_static_bytes": 4, "workspace_bytes": 1, missing: None}
    assert activation_bytes(memory) is None
    assert at_peak(memory) == NOT_COUNTED


def assert_no_workspace(meter):
    meter.devices = [CPU]
    meter.measure_workspace(lambda: None)
    assert meter.read()["workspace_bytes"] is None


@pytest.mark.parametrize("error", [OSError("no folder"), tf.errors.ResourceExhaustedError(None, None, "no space\nat")])
def test_no_run_ends_for_the_measurement(error, monkeypatch, capsys):
    def fail(work):
        raise error

    monkeypatch.setattr(memory_meter, "workspace_at_peak", fail)
    assert_no_workspace(Meter())
    assert capsys.readouterr().err.startswith("warning: the workspace of kernels is not measured: no ")


def test_under_xla_it_is_not_measured(monkeypatch):
    monkeypatch.setattr(memory_meter, "workspace_at_peak", lambda work: pytest.fail("XLA's operation holds everything"))
    assert_no_workspace(Meter(TensorFlowRuntime(xla=True)))


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ((10, 4, 2), "10.0 MB of tensors at peak: state 4.0 MB, activations 4.0 MB, workspace 2.0 MB"),
        ((10, 4, None), "10.0 MB of tensors at peak: state 4.0 MB, activations 6.0 MB"),
        ((None, None, None), NOT_COUNTED),
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


@pytest.mark.slow
def test_a_child_does_not_count_the_memory_of_its_parent():
    """Linux's getrusage does, which tells at least the peak of the process that has started this one."""
    child = "from accumtrain.train.memory import _rss_peak; print(_rss_peak())"
    parent = (
        "import subprocess, sys; filled = b'x' * 2**30; del filled; "
        f"print(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True).stdout)"
    )
    assert 50 * MB < int(subprocess.check_output([sys.executable, "-c", parent], text=True)) < 1000 * MB
