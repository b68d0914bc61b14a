"""What is said before the first update of a precision that this CPU only emulates."""

from __future__ import annotations

import pytest
import tensorflow as tf

from accumtrain.engine import emulation
from accumtrain.engine.emulation import tell_emulation
from accumtrain.process.environment import KERNELS_16BIT


@pytest.fixture
def emulating(monkeypatch):
    monkeypatch.setattr(emulation, "is_emulated", lambda dtype: dtype == tf.bfloat16)
    monkeypatch.setattr(emulation, "kernel_dtype", lambda dtype: tf.float32)


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
    assert "which this CPU only emulates: precision=float32 is faster" in said


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


@pytest.mark.parametrize(("precision", "compiled"), [("float32", True), ("bfloat16", False)])
def test_nothing_is_said_of_other_precisions_and_where_other_kernels_compute(emulating, capsys, precision, compiled):
    tell_emulation(micro_step(tf.bfloat16), precision, compiled=compiled)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_said_where_the_cpu_computes_in_16_bits(monkeypatch, capsys):
    monkeypatch.setattr(emulation, "is_emulated", lambda dtype: False)
    monkeypatch.setattr(emulation, "kernel_dtype", lambda dtype: dtype)
    tell_emulation(micro_step(tf.bfloat16), "bfloat16", compiled=True)
    assert capsys.readouterr() == ("", "")
