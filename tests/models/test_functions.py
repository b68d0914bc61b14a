"""ResNets (arXiv:1603.05027) and RevNets (arXiv:1707.04585) against the same written apart in float64 NumPy."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.models.build import build_model
from accumtrain.models.config import ModelConfig, ResNetConfig, RevNetConfig
from accumtrain.models.layers import Bias, Conv, Dense, Initializer, ModelSpec
from accumtrain.models.norms import BatchNorm, GroupNorm
from accumtrain.models.resnet.blocks import Head

SHAPE = (11, 9, 3)  # odd: pooling and strides leave a rest
CLASSES = 5
BASIC = {"units": [2, 1], "filters": [8, 8, 20]}
BOTTLENECK = {"units": [1, 1], "filters": [8, 8, 12], "bottleneck": True, "stem": "imagenet"}
CONFIGS: dict[str, ModelConfig] = {
    "resnet": ResNetConfig(**BASIC),
    "resnet, bottleneck": ResNetConfig(**BOTTLENECK),
    "revnet": RevNetConfig(**BASIC, memory="store", snap_bits=0),
    "revnet, bottleneck": RevNetConfig(**BOTTLENECK, memory="store", snap_bits=0),
}


@pytest.mark.parametrize(("precision", "rtol"), [("float64", 1e-11), ("float32", 1e-4)])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_network_computes_what_its_paper_says(config, norm, precision, rtol):
    model = build_model(replace(config, norm=norm), ModelSpec(SHAPE, CLASSES, precision, seed=1))
    draw = np.random.default_rng(0)
    for path, variable in model.named.items():
        values = draw.uniform(0.5, 1.5, variable.shape) if "variance" in path else draw.normal(size=variable.shape)
        variable.assign(values)
    images = draw.normal(size=(4, *SHAPE)).astype(np.float32)
    training = Mode(training=True, recording=True)
    for mode in (EVALUATION, training):
        arrays = {path: variable.numpy().astype(float) for path, variable in model.named.items()}
        apart = Apart(config, arrays, norm, mode.training)
        expected = apart.logits(images)
        np.testing.assert_allclose(model(images, mode), expected, rtol=rtol, atol=rtol * np.abs(expected).max())
    paths = {id(variable): path for path, variable in model.named.items()}
    assert len(model.norms) == len(apart.statistics) == (len(training.statistics) if norm == "batch" else 0)
    for layer, (mean, variance) in training.statistics.items():
        expected_mean, expected_variance = apart.statistics[paths[id(layer.gamma)]]
        np.testing.assert_allclose(mean, expected_mean, rtol=rtol, atol=rtol * np.sqrt(expected_variance).max())
        np.testing.assert_allclose(variance, expected_variance, rtol=rtol)


def test_frozen_norms_compute_in_training_as_the_paper_says_of_evaluation():
    config = CONFIGS["resnet"]
    model = build_model(config, ModelSpec(SHAPE, CLASSES, "float64", seed=1))
    draw = np.random.default_rng(0)
    for path, variable in model.named.items():
        variable.assign(draw.uniform(0.5, 1.5, variable.shape) if "norm" in path else draw.normal(size=variable.shape))
    for layer in model.norms:
        layer.frozen = True
    images = draw.normal(size=(4, *SHAPE))
    apart = Apart(config, {path: variable.numpy() for path, variable in model.named.items()}, "batch", training=False)
    np.testing.assert_allclose(model(images, Mode(training=True, recording=True)), apart.logits(images), rtol=1e-9)


@pytest.mark.parametrize("parts", [1, 2])
def test_kernels_are_drawn_with_the_variance_of_their_layer(parts):
    init = Initializer(seed=7)
    kernel, other, dense = init.conv((3, 3, 4, 16), parts), init.conv((1, 1, 4, 16), parts), init.dense((12, 5))
    for number, (variable, size) in enumerate([(kernel, 3 * 3), (other, 1)], 1):
        unit = tf.random.stateless_truncated_normal(variable.shape, [7, number])
        np.testing.assert_allclose(variable, unit * math.sqrt(2 / (size * 16 * parts)), rtol=1e-6)
    unit = tf.random.stateless_uniform([12, 5], [7, 3], -1.0, 1.0)
    np.testing.assert_allclose(dense, unit * math.sqrt(3 / 12), rtol=1e-5, atol=1e-7)


def test_kernels_that_are_not_drawn_are_zeros_and_all_else_is_the_same():
    drawn, other = (
        build_model(ResNetConfig(**BASIC), ModelSpec(SHAPE, CLASSES, draws=draws)) for draws in (True, False)
    )
    assert drawn.named.keys() == other.named.keys()
    for path, variable in drawn.named.items():
        value, zeros = variable.numpy(), other.named[path].numpy()
        assert (value.shape, value.dtype) == (zeros.shape, zeros.dtype)
        if path.endswith("kernel"):
            assert np.any(value)
            assert not np.any(zeros)
        else:
            np.testing.assert_array_equal(value, zeros)


MEMORY = """
from accumtrain.devices.config import CpuConfig
from accumtrain.process import environment

environment.prepare(CpuConfig())
import tensorflow as tf

from accumtrain.devices.local import resolve_cpu
from accumtrain.models.config import ResNetConfig
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec

resolve_cpu(CpuConfig())
before = tf.config.experimental.get_memory_info("CPU:0")["current"]
wide = ResNetConfig(stem="imagenet", bottleneck=True, units=[1, 1, 1, 1], filters=[64, 256, 512, 1024, 2048])
model = build_model(wide, ModelSpec((64, 64, 3), 10))
taken = tf.config.experimental.get_memory_info("CPU:0")["current"] - before
print(taken / sum(4 * variable.shape.num_elements() for variable in model.variables))
"""


@pytest.mark.slow
def test_variables_take_little_more_memory_than_their_numbers():
    """A draw takes memory for a moment, which the allocator would give as it is to a variable that took it over."""
    found = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert 1.0 <= float(found.stdout) < 1.01


@pytest.mark.parametrize(("config", "parts"), [(ResNetConfig(**BASIC), 1), (RevNetConfig(**BASIC), 2)])
def test_a_stem_is_drawn_like_the_one_that_it_is_or_is_a_part_of(config, parts):
    model = build_model(config, ModelSpec(SHAPE, CLASSES, seed=7))
    first, *_ = (variable for variable in model.trainable_variables if len(variable.shape) == 4)
    unit = tf.random.stateless_truncated_normal(first.shape, [7, 1])
    np.testing.assert_allclose(first, unit * math.sqrt(2 / (9 * first.shape[-1] * parts)), rtol=1e-6)


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", tf.bfloat16), ("float16", tf.float32)])
def test_functions_of_the_first_stage_give_what_a_stream_can_take(precision, dtype):
    """Values times the factor of a stream are beyond float16."""
    unit = build_model(RevNetConfig(**BASIC), ModelSpec(SHAPE, CLASSES, precision)).segments[1].units[0]
    assert (unit.f.dtype, unit.g.dtype) == (dtype, dtype)


def test_a_model_is_that_of_seed_0_in_float32_unless_it_says_otherwise():
    assert ModelSpec(SHAPE, CLASSES) == ModelSpec(SHAPE, CLASSES, "float32", 0)


def test_the_head_averages_in_the_dtype_of_its_variables():
    """The mean of 1 and of 1 + 2^-7 is no number of bfloat16."""
    init = Initializer(seed=7)
    head = Head(init, "batch", 1, 3)
    head.activation = lambda x, mode: x
    images = tf.constant([1.0, 1 + 2.0**-7], tf.bfloat16, [1, 1, 2, 1])
    logits = head(images, Mode(training=False))
    assert logits.dtype == tf.float32
    np.testing.assert_allclose(logits, (1 + 2.0**-8) * head.dense.kernel.numpy(), rtol=1e-6)


def test_layers_begin_with_the_numbers_of_their_papers():
    """Layers have the defaults of their arguments. A network draws its kernels in the order of its layers."""
    init = Initializer(seed=7)
    conv, dense, bias = Conv(init, 3, 4, 16), Dense(init, 12, 5), Bias(init, 3)
    norm, group = BatchNorm(init, 3), GroupNorm(init, 24)
    unit = tf.random.stateless_truncated_normal([3, 3, 4, 16], [7, 1])
    np.testing.assert_allclose(conv.kernel, unit * math.sqrt(2 / (9 * 16)), rtol=1e-6)
    assert (conv.stride, conv.padding, init.created) == (1, "SAME", 2)
    np.testing.assert_array_equal(Initializer(seed=7).conv((3, 3, 4, 16)), conv.kernel)
    for layer in (norm, group):
        assert not np.any(layer.beta)
        assert np.all(layer.gamma == 1.0)
    assert not np.any([*dense.bias.numpy(), *bias.bias.numpy(), *norm.moving_mean.numpy()])
    assert np.all(norm.moving_variance == 1.0)
    assert (norm.channels, norm.momentum, norm.frozen, group.groups) == (3, 0.9, False, 3)
    assert [variable.name for variable in norm.trainable_variables] == ["beta:0", "gamma:0"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_variance_is_the_biased_one_also_of_an_unknown_number_of_examples(count):
    """One value has no variance, biased or not."""
    x = np.random.default_rng(0).normal(size=(count, 1, 1, 4)).astype(np.float32)
    norm = BatchNorm(Initializer(0), 4)

    def statistics(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mode = Mode(training=True, recording=True)
        norm(x, mode)
        return mode.statistics[norm]

    for shape in ([None, 1, 1, 4], x.shape):
        traced = tf.function(statistics, autograph=False, input_signature=[tf.TensorSpec(shape)])
        mean, variance = traced(tf.constant(x))
        np.testing.assert_allclose(mean, x.mean((0, 1, 2)), rtol=1e-6)
        np.testing.assert_allclose(variance, x.astype(float).var((0, 1, 2)), rtol=1e-5)


def test_norms_of_other_sizes_in_a_pass_have_variances_of_their_own_number_of_values():
    """The factor of an unknown number of examples on the variance is computed once for each size."""
    large = np.random.default_rng(0).normal(size=(3, 2, 2, 4)).astype(np.float32)
    inputs = [large, large[:, :1, :1], large[:, 1:, 1:], large]
    norms = [BatchNorm(Initializer(0), 4) for _ in inputs]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, *x.shape[1:]]) for x in inputs])
    def variances(*inputs: tf.Tensor) -> list[tf.Tensor]:
        mode = Mode(training=True, recording=True)
        for norm, x in zip(norms, inputs, strict=True):
            norm(x, mode)
        return [mode.statistics[norm][1] for norm in norms]

    for x, found in zip(inputs, variances(*inputs), strict=True):
        np.testing.assert_allclose(found, x.astype(float).var((0, 1, 2)), rtol=1e-5)
    shapes = [op for op in variances.get_concrete_function().graph.get_operations() if op.type == "Shape"]
    assert len(shapes) == 2


# --- written apart --------------------------------------------------------------------------------------------------


class Apart:
    """A network by the paths of its variables. `statistics` holds mean and variance of each batch by path of gamma."""

    def __init__(self, config: ModelConfig, named: dict[str, np.ndarray], norm: str, training: bool):
        self.config, self.named, self.kind, self.training = config, named, norm, training
        self.statistics: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def logits(self, images: np.ndarray) -> np.ndarray:
        network = self.revnet if isinstance(self.config, RevNetConfig) else self.resnet
        x, head = network(images)
        x = relu(self.norm(x, f"{head}/activation/norm")).mean(axis=(1, 2))
        return x @ self.named[f"{head}/dense/kernel"] + self.named[f"{head}/dense/bias"]

    def resnet(self, images: np.ndarray) -> tuple[np.ndarray, str]:
        x = self.stem(images, "segments/0/layers/0")
        segment = 1
        for stage, units in enumerate(self.config.units):
            for unit in range(units):
                path, stride = f"segments/{segment}/layers/0", 2 if stage > 0 and unit == 0 else 1
                residual = self.residual(x, f"{path}/residual", stride)
                x = self.shortcut(x, residual, f"{path}/shortcut", stride) + residual
                assert x.shape[-1] == self.width(stage)
                segment += 1
        return x, f"segments/{segment}/layers/0"

    def revnet(self, images: np.ndarray) -> tuple[np.ndarray, str]:
        x1, x2 = (self.stem(images, f"segments/0/layers/0/stems/{stream}/function") for stream in range(2))
        for stage, units in enumerate(self.config.units):
            for unit in range(units):
                path, stride = f"segments/{stage + 1}/units/{unit}", 2 if stage > 0 and unit == 0 else 1
                f = self.residual(x2, f"{path}/f/function", stride)
                y1 = self.shortcut(x1, f, f"{path}/shortcuts/0/function", stride) + f
                g = self.residual(y1, f"{path}/g/function", 1)
                x1, x2 = y1, self.shortcut(x2, g, f"{path}/shortcuts/1/function", stride) + g
                assert x1.shape[-1] == x2.shape[-1] == self.width(stage) // 2
        return np.concatenate([x1, x2], axis=-1), f"segments/{len(self.config.units) + 1}/layers/1"

    def width(self, stage: int) -> int:
        """Channels of the output of a stage, of both streams."""
        return self.config.filters[stage + 1] * (4 if self.config.bottleneck else 1)

    def stem(self, images: np.ndarray, path: str) -> np.ndarray:
        large = self.config.stem == "imagenet"
        x = convolution(images, self.named[f"{path}/conv/kernel"], 2 if large else 1)
        x = relu(self.norm(x, f"{path}/norm"))
        return pool(x, 3, 2, np.nanmax) if large else x

    def residual(self, x: np.ndarray, path: str, stride: int) -> np.ndarray:
        kernels = [self.named[f"{path}/convs/{place}/kernel"] for place in range(3 if self.config.bottleneck else 2)]
        outputs = kernels[-1].shape[-1]
        inner, sizes = (outputs // 4, [1, 3, 1]) if self.config.bottleneck else (outputs, [3, 3])
        assert [kernel.shape[0] for kernel in kernels] == sizes
        assert {kernel.shape[-1] for kernel in kernels[:-1]} == {inner}
        for place, kernel in enumerate(kernels):
            if f"{path}/activations/{place}/norm/gamma" in self.named:
                x = relu(self.norm(x, f"{path}/activations/{place}/norm"))
            else:
                assert (place, path.split("/")[1]) == (0, "1"), "only in the first unit, behind the stem's"
            x = convolution(x, kernel, stride if place == 0 else 1)
        return x

    def shortcut(self, x: np.ndarray, like: np.ndarray, path: str, stride: int) -> np.ndarray:
        if x.shape == like.shape:
            return x
        if self.config.bottleneck:
            return convolution(x, self.named[f"{path}/conv/kernel"], stride)
        missing = like.shape[-1] - x.shape[-1]
        return np.pad(pool(x, stride, stride, np.nanmean), [(0, 0)] * 3 + [(missing // 2, missing - missing // 2)])

    def norm(self, x: np.ndarray, path: str) -> np.ndarray:
        gamma, beta = (self.named[f"{path}/{name}"] for name in ("gamma", "beta"))
        if self.kind == "group":
            size = math.gcd(x.shape[-1], 8)
            groups = x.reshape(*x.shape[:3], -1, size)
            mean, variance = (moment(groups, axis=(1, 2, 4), keepdims=True) for moment in (np.mean, np.var))
            return ((groups - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape) * gamma + beta
        if self.training:
            mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
        else:
            mean, variance = (self.named[f"{path}/moving_{name}"] for name in ("mean", "variance"))
        self.statistics[f"{path}/gamma"] = mean, variance
        return (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def windows(x: np.ndarray, size: int, stride: int) -> np.ndarray:
    """[N, H, W, C] -> [N, rows, columns, C, size, size], as many as pixels / stride, rounded up; NaN outside."""
    pads = []
    for pixels in x.shape[1:3]:
        missing = max((-(-pixels // stride) - 1) * stride + size - pixels, 0)
        pads.append((missing // 2, missing - missing // 2))
    padded = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=np.nan)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))[:, ::stride, ::stride]


def convolution(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    return np.einsum("nhwcij,ijco->nhwo", np.nan_to_num(windows(x, kernel.shape[0], stride)), kernel)


def pool(x: np.ndarray, size: int, stride: int, function) -> np.ndarray:
    """Pool the pixels that there are."""
    return function(windows(x, size, stride), axis=(-2, -1))
