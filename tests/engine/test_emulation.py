"""What is said before the first update of a precision that this CPU only emulates."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

from accumtrain.engine import emulation
from accumtrain.engine.emulation import slowdown, tell_emulation
from accumtrain.process.environment import KERNELS_16BIT


@pytest.fixture
def emulating(monkeypatch):
    monkeypatch.setattr(emulation, "is_emulated", lambda dtype: dtype == tf.bfloat16)
    monkeypatch.setattr(emulation, "kernel_dtype", lambda dtype: tf.float32)
    monkeypatch.setattr(emulation, "slowdown", lambda dtype: 19.6)


def micro_step(dtype):
    """A loop over a function with a convolution in `dtype` and a product in float32."""

    @tf.function
    def body(x):
        y = tf.nn.conv2d(tf.cast(x, dtype), tf.ones([3, 3, 2, 2], dtype), 1, "SAME")
        return tf.cast(tf.cast(y, tf.float32) @ tf.eye(2), x.dtype)

    @tf.function
    def steps(x):
        return tf.while_loop(lambda x: tf.reduce_sum(x) < 10.0, lambda x: (body(x),), [x])

    return steps.get_concrete_function(tf.TensorSpec([1, 4, 4, 2]))


def test_emulated_operations_are_counted_inside_loops_and_functions(emulating, capsys):
    tell_emulation(micro_step(tf.bfloat16), "bfloat16", compiled=True)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("warning: 1 of 2 convolutions and matrix products are computed in bfloat16, which")
    assert "take 20 times as long here as in float32. precision=float32 is faster" in said


def test_what_is_computed_in_float32_is_said_without_a_warning(emulating, capsys):
    tell_emulation(micro_step(tf.float32), "bfloat16", compiled=True)
    out, err = capsys.readouterr()
    assert " ".join(out.split()).endswith("computed in float32, as this CPU has no kernels for it")
    assert not err


def test_a_precision_that_is_slower_here_is_said_to_save_no_time(monkeypatch, capsys):
    monkeypatch.setenv(KERNELS_16BIT, "0")
    monkeypatch.setattr(emulation, "is_emulated", lambda dtype: False)
    monkeypatch.setattr(emulation, "kernel_dtype", lambda dtype: tf.float32)
    tell_emulation(micro_step(tf.float32), "bfloat16", compiled=True)
    out, err = capsys.readouterr()
    said = " ".join(out.split())
    assert said.startswith("precision=bfloat16 saves memory here, not time: convolutions and matrix products are")
    assert said.endswith("computed in float32, by ACCUMTRAIN_16BIT_KERNELS=0")
    assert not err


def slower(monkeypatch, factor):
    """A CPU that computes in 16 bits, and takes `factor` times as long for it."""
    monkeypatch.setattr(emulation, "is_emulated", lambda dtype: False)
    monkeypatch.setattr(emulation, "slowdown", lambda dtype: factor)
    monkeypatch.delenv(KERNELS_16BIT, raising=False)


@pytest.mark.parametrize(("factor", "times"), [(1.53, "1.5"), (1.2, "1.2")])
def test_layers_that_compute_in_a_slower_precision_are_warned_of(monkeypatch, capsys, factor, times):
    """Keras's layers choose their dtype themselves."""
    slower(monkeypatch, factor)
    tell_emulation(micro_step(tf.bfloat16), "bfloat16", compiled=True)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("warning: 1 of 2 convolutions and matrix products are computed in bfloat16: the gradients")
    assert f"take {times} times as long here as in float32. precision=float32 may be faster" in said


@pytest.mark.parametrize(("factor", "value"), [(0.6, None), (1.19, None), (1.5, "1")])
def test_nothing_is_said_of_a_faster_precision_or_one_that_was_chosen(monkeypatch, capsys, factor, value):
    slower(monkeypatch, factor)
    if value:
        monkeypatch.setenv(KERNELS_16BIT, value)
    tell_emulation(micro_step(tf.bfloat16), "bfloat16", compiled=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("precision", "compiled"), [("float32", True), ("bfloat16", False)])
def test_nothing_is_said_of_other_precisions_and_where_other_kernels_compute(emulating, capsys, precision, compiled):
    tell_emulation(micro_step(tf.bfloat16), precision, compiled=compiled)
    assert capsys.readouterr() == ("", "")


def test_a_graph_that_was_kept_is_of_layers_that_compute_in_float32(emulating, capsys):
    tell_emulation(None, "bfloat16", compiled=True)
    out, err = capsys.readouterr()
    assert " ".join(out.split()).endswith("computed in float32, as this CPU has no kernels for it")
    assert not err


@pytest.mark.parametrize("slow", ["Conv2DBackpropInput", "Conv2DBackpropFilter"])
def test_both_gradients_of_a_convolution_are_timed(slow, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(emulation, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def gradient(name):
        def call(*, out_backprop, **others):
            clock.now += 9.0 if name == slow and out_backprop.dtype == tf.bfloat16 else 1.0

        return call

    for name in ("Conv2DBackpropInput", "Conv2DBackpropFilter"):
        monkeypatch.setattr(tf.raw_ops, name, gradient(name))
    assert slowdown(tf.bfloat16) == 5.0


def test_float32_takes_as_long_as_itself():
    assert 0.05 < slowdown(tf.float32) < 20.0


def test_seconds_are_measured():
    assert emulation._seconds(tf.float32) > 0
