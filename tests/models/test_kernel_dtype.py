"""Convolutions and products of 16 bits on a CPU without instructions for them: in float32, which is told."""

import re

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import kernels as module
from accumtrain.backprop import tape
from accumtrain.backprop.kernels import is_emulated, kernel_dtype, tell_emulation
from accumtrain.backprop.mode import Mode
from accumtrain.models.build import build_model
from accumtrain.models.config import RevNetConfig
from accumtrain.models.layers import Conv, Dense, Initializer, ModelSpec
from accumtrain.process.environment import KERNELS_16BIT

PRODUCTS = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "MatMul")
HALVES = [tf.bfloat16, tf.float16]


@pytest.fixture
def emulating(monkeypatch):
    """A CPU without instructions for 16 bits."""
    monkeypatch.setattr(module, "is_emulated", lambda dtype: dtype in HALVES)


def product_dtypes(function):
    operations = tf.function(function, autograph=False).get_concrete_function().graph.get_operations()
    return {operation.outputs[0].dtype for operation in operations if operation.type in PRODUCTS}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (3, 2)])
def test_a_convolution_is_that_of_float32_rounded_once(emulating, dtype, size, stride):
    conv = Conv(Initializer(1), size, 6, 10, stride)
    x = tf.cast(tf.random.stateless_normal([4, 9, 9, 6], [1, 2]), dtype)
    wide, kernel = tf.cast(x, tf.float32), tf.cast(tf.cast(conv.kernel, dtype), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([wide, kernel])
        expected = tf.nn.conv2d(wide, kernel, stride, "SAME")
    d_y = tf.cast(tf.random.stateless_normal(expected.shape, [3, 4]), dtype)
    d_wide, d_kernel = tape.gradient(expected, [wide, kernel], tf.cast(d_y, tf.float32))

    y, backward = conv.pullback(x, Mode(training=True))
    d_x, [(_, found)] = backward(d_y, x)
    np.testing.assert_array_equal(y, tf.cast(expected, dtype))
    np.testing.assert_array_equal(d_x, tf.cast(d_wide, dtype))
    np.testing.assert_allclose(found, d_kernel, rtol=1e-5, atol=1e-5)  # products for 1 x 1 sum in another order

    with tf.GradientTape() as tape:
        tape.watch(x)
        taped = conv(x)
    taped_d_x, taped_d_kernel = tape.gradient(taped, [x, conv.kernel], d_y)
    np.testing.assert_array_equal(taped, y)
    np.testing.assert_array_equal(conv(x), y)
    np.testing.assert_array_equal(taped_d_x, d_x)
    np.testing.assert_array_equal(taped_d_kernel, found)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_dense_layer_is_that_of_float32_rounded_once(emulating, dtype):
    dense, x = Dense(Initializer(1), 4, 6), tf.cast(tf.random.stateless_normal([2, 4], [1, 2]), dtype)
    expected = tf.cast(x, tf.float32) @ tf.cast(tf.cast(dense.kernel, dtype), tf.float32)
    with tf.GradientTape():
        taped = dense(x)
    for found in (taped, dense(x)):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, tf.cast(expected, dtype))


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("size", [1, 3])
def test_gradients_of_kernels_are_float32(monkeypatch, size, emulated):
    monkeypatch.setattr(module, "is_emulated", lambda dtype: emulated and dtype in HALVES)
    conv, dense = Conv(Initializer(1), size, 4, 6), Dense(Initializer(1), 4, 6)
    x = tf.cast(tf.random.stateless_normal([2, 5, 5, 4], [1, 2]), tf.bfloat16)
    with tf.GradientTape() as tape:
        found = conv(x), dense(x[:, 0, 0])
        loss = tf.add_n([tf.reduce_sum(tf.cast(each, tf.float32) ** 2) for each in found])
    assert [each.dtype for each in found] == [tf.bfloat16] * 2
    assert [each.dtype for each in tape.gradient(loss, [conv.kernel, dense.kernel])] == [tf.float32] * 2


def test_every_product_is_computed_in_float32(emulating):
    conv, dense = Conv(Initializer(1), 3, 4, 8), Dense(Initializer(2), 8, 5)

    def step():
        with tf.GradientTape() as tape:
            x = tf.zeros([2, 6, 6, 4], tf.bfloat16)
            y = dense(tf.reduce_mean(conv(x), axis=[1, 2]))
        return y, tape.gradient(y, [*conv.trainable_variables, *dense.trainable_variables])

    assert product_dtypes(step) == {tf.float32}


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_other_dtypes_compute_in_themselves(dtype):
    assert kernel_dtype(dtype) == dtype
    assert not is_emulated(dtype)


@pytest.mark.parametrize(
    ("onednn", "instructions", "emulated"),
    [
        (True, ["avx2", "avx512f", "avx512_bf16"], False),
        (True, ["amx_bf16"], False),
        (True, ["avx2", "avx512f", "avx512_vnni"], True),
        (False, ["avx512_bf16", "amx_bf16"], True),
        (True, [], True),
    ],
)
def test_instructions_and_onednn_decide(monkeypatch, onednn, instructions, emulated):
    monkeypatch.setattr(module, "IsMklEnabled", lambda: onednn)
    monkeypatch.setattr(module, "cpu", lambda: {"instructions": instructions})
    assert is_emulated.__wrapped__(tf.bfloat16) is emulated
    assert is_emulated.__wrapped__(tf.float32) is False


@pytest.mark.parametrize(("instruction", "emulated"), [("avx512_fp16", True), ("amx_fp16", False)])
def test_float16_has_kernels_for_all_gradients_with_amx_only(monkeypatch, instruction, emulated):
    monkeypatch.setattr(module, "IsMklEnabled", lambda: True)
    monkeypatch.setattr(module, "cpu", lambda: {"instructions": ["avx512_bf16", "amx_bf16", instruction]})
    assert is_emulated.__wrapped__(tf.float16) is emulated


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float32, tf.float64])
@pytest.mark.parametrize(("value", "in_float32"), [("0", True), ("1", False), (None, False)])
def test_the_environment_says_where_float32_is_faster_than_16_bits(monkeypatch, value, in_float32, dtype):
    monkeypatch.setattr(module, "is_emulated", lambda dtype: False)
    monkeypatch.delenv(KERNELS_16BIT, raising=False)
    if value is not None:
        monkeypatch.setenv(KERNELS_16BIT, value)
    assert kernel_dtype(dtype) == (tf.float32 if in_float32 and dtype in HALVES else dtype)


SAVED = "precision=bfloat16 saves memory here, not time: convolutions and matrix products are computed in float32"
WARNED = "warning: this CPU only emulates bfloat16, in which layers of Keras and your own compute.*float32 is faster.*"


@pytest.mark.parametrize(
    ("emulated", "by_environment", "precision", "own_layers", "out", "err"),
    [
        (True, "1", "bfloat16", False, "", WARNED),
        (True, "1", "bfloat16", True, f"{SAVED}, as this CPU has no kernels for it", ""),
        (False, "0", "bfloat16", True, f"{SAVED}, by ACCUMTRAIN_16BIT_KERNELS=0", ""),
        (True, "1", "float32", True, "", ""),
        (True, "1", "float32", False, "", ""),
        (False, "1", "bfloat16", True, "", ""),
        (False, "1", "bfloat16", False, "", ""),
    ],
)
def test_a_precision_that_saves_no_time_is_told(
    monkeypatch, capsys, emulated, by_environment, precision, own_layers, out, err
):
    monkeypatch.setattr(module, "is_emulated", lambda dtype: emulated and dtype in HALVES)
    monkeypatch.setenv(KERNELS_16BIT, by_environment)
    tell_emulation(precision, own_layers=own_layers)
    for text, expected in zip(capsys.readouterr(), (out, err), strict=True):
        assert re.fullmatch(expected, " ".join(text.split()))


@pytest.mark.slow
@pytest.mark.parametrize("bottleneck", [False, True])
def test_a_reversed_gradient_has_the_bits_of_a_stored_one(emulating, bottleneck):
    config = {"units": [2, 2], "filters": [16, 32, 64], "bottleneck": bottleneck}
    images = tf.random.stateless_normal([3, 8, 8, 3], [5, 6])
    stored, reversed_, recomputed = (
        gradients_of(build_model(RevNetConfig(memory=memory, **config), ModelSpec((8, 8, 3), 4, "bfloat16")), images)
        for memory in ("store", "reverse", "recompute")
    )
    for number, gradient in enumerate(stored):
        assert np.any(gradient)
        np.testing.assert_array_equal(reversed_[number], gradient)
        np.testing.assert_array_equal(recomputed[number], gradient)


def gradients_of(model, images):
    @tf.function(autograph=False)
    def step():
        found, mode = [], Mode(training=True, recording=True)
        tape.gradient(model, images, tf.reduce_logsumexp, mode, lambda pairs: found.extend(pairs) or [])
        by_variable = {variable.ref(): value for variable, value in found}
        return [by_variable[variable.ref()] for variable in model.trainable_variables]

    return [value.numpy() for value in step()]


def test_a_wide_copy_waits_for_the_gradient(emulating):
    """Casts of the input for the backward pass come after d_y, or all inputs would be kept in float32."""
    conv = Conv(Initializer(1), 3, 4, 8)

    @tf.function(autograph=False)
    def step(x, d_y):
        y, backward = conv.pullback(x, Mode(training=True))
        d_x, [(_, d_kernel)] = backward(d_y, x)
        return y, d_x, d_kernel

    x, d_y = (tf.TensorSpec([2, 6, 6, channels], tf.bfloat16) for channels in (4, 8))
    graph = step.get_concrete_function(x, d_y).graph
    backward = [each for each in graph.get_operations() if each.type.startswith("Conv2DBackprop")]
    casts = [operand.op for each in backward for operand in each.inputs if operand.op.type == "Cast"]
    assert len(casts) == 4
    assert all("d_y" in ancestors(cast) for cast in casts)


def test_a_wide_kernel_waits_for_the_input(emulating):
    """Casts of kernels come after x, or all kernels of a model are in memory in float32 when a micro-step begins."""
    conv = Conv(Initializer(1), 3, 4, 8)
    graph = tf.function(conv).get_concrete_function(tf.TensorSpec([2, 6, 6, 4], tf.bfloat16, "x")).graph
    [product] = [each for each in graph.get_operations() if each.type == "Conv2D"]
    wide = product.inputs[1].op
    assert wide.type == "Cast"
    assert "x" in ancestors(wide)


def ancestors(operation):
    waiting, found = [operation], set()
    while waiting:
        current = waiting.pop()
        if current.name not in found:
            found.add(current.name)
            waiting += [*(tensor.op for tensor in current.inputs), *current.control_inputs]
    return found
