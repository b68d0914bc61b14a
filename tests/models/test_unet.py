"""U-Nets: images of any size, the same bits under every memory policy, and gradients against Keras's."""

from dataclasses import replace
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.errors import ConfigError
from accumtrain.fields import EACH
from accumtrain.models.build import build_model
from accumtrain.models.config import LeNetConfig, RevUNetConfig, UNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.models.norms import EPSILON

CLASSES = 3
UNET, REVUNET = UNetConfig(filters=[8, 16, 16]), RevUNetConfig(filters=[16, 16, 32], units=[2, 1, 1])
ODD, TINY = (13, 7, 3), (2, 3, 1)  # TINY is smaller than the factor 4 of three levels


def build(config, shape=ODD, precision="float32"):
    return build_model(config, ModelSpec(shape, CLASSES, precision, seed=1, tells=EACH))


def images(shape=ODD):
    return tf.random.stateless_normal([2, *shape], [1, 2], dtype=tf.float64)


def loss(logits):
    weights = tf.random.stateless_normal(tf.shape(logits), [5, 6], dtype=tf.float64)
    return tf.reduce_sum(logits**2 + tf.cast(weights, logits.dtype) * logits)


def gradient_of(model, shape=ODD):
    """The loss, the gradients of the trained variables, and the batch statistics."""
    found = {}

    def consume(gradients):
        found.update({variable.ref(): gradient for variable, gradient in gradients})
        return [gradient for _, gradient in gradients if gradient is not None]

    @tf.function(autograph=False)
    def run():
        mode = Mode(training=True, recording=True)
        value, _ = tape.gradient(model, images(shape), loss, mode, consume)
        statistics = [tensor for norm in model.norms for tensor in mode.statistics[norm]]
        return [value, *(found[variable.ref()] for variable in model.trainable_variables), *statistics], mode.inexact

    values, inexact = run()
    assert not any(map(bool, inexact))
    return [value.numpy() for value in values]


@cache
def stored(kind, norm, precision, shape):
    config = UNET if kind == "unet" else REVUNET
    return gradient_of(build(replace(config, norm=norm, memory="store"), shape, precision), shape)


@pytest.mark.parametrize("shape", [ODD, TINY], ids=["odd", "tiny"])
@pytest.mark.parametrize(
    ("norm", "precision"), [("group", "float32"), ("group", "bfloat16"), ("group", "float64"), ("batch", "float32")]
)
@pytest.mark.parametrize("memory", ["recompute", "reverse"])
def test_gradient_is_bitwise_that_of_stored_activations(memory, norm, precision, shape):
    config = replace(REVUNET, norm=norm, memory=memory)
    made = gradient_of(build(config, shape, precision), shape)
    assert all(map(np.array_equal, stored("revunet", norm, precision, shape), made))


@pytest.mark.parametrize(("norm", "precision"), [("group", "float32"), ("batch", "bfloat16")])
def test_the_plain_one_recomputes_the_same_bits(norm, precision):
    made = gradient_of(build(replace(UNET, norm=norm, memory="recompute"), ODD, precision))
    assert all(map(np.array_equal, stored("unet", norm, precision, ODD), made))


@pytest.mark.parametrize("config", [UNET, replace(REVUNET, snap_bits=0, memory="store")], ids=["unet", "revunet"])
def test_the_gradient_is_that_of_a_gradient_tape(config):
    model = build(config, precision="float64")
    with tf.GradientTape() as recorded:
        value = loss(model(images(), Mode(training=True)))
    expected = recorded.gradient(value, model.trainable_variables)
    for one, other in zip([value, *expected], gradient_of(model), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12 * np.abs(other).max())


@pytest.mark.parametrize("config", [UNET, REVUNET], ids=["unet", "revunet"])
@pytest.mark.parametrize("precision", ["bfloat16", "float64"])
def test_logits_of_images_of_any_size_have_the_dtype_of_the_weights(config, precision):
    model = build(config, precision=precision)
    call = tf.function(model, input_signature=[tf.TensorSpec([None, None, None, 3], tf.float64)], autograph=False)
    for shape in (ODD, (1, 1, 3), (8, 12, 3)):
        logits = call(images(shape))
        assert logits.shape == (2, *shape[:2], CLASSES)
        assert logits.dtype == model.trainable_variables[0].dtype
        if precision == "float64":
            np.testing.assert_allclose(logits, model(images(shape)), rtol=1e-10)


def keras_twin(filters):
    """The plain U-Net of Keras layers, in which variables come in the order of accumtrain's."""
    layers = keras.layers

    def block(x, width):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.GroupNormalization(width // 8, epsilon=EPSILON)(x))
        return x

    x = inputs = keras.Input((16, 8, 3), dtype="float64")
    skips = []
    for width in filters[:-1]:
        skips.append(block(x, width))
        x = layers.MaxPooling2D()(skips[-1])
    x = block(x, filters[-1])
    for width, skip in zip(reversed(filters[:-1]), reversed(skips), strict=True):
        up = layers.Conv2DTranspose(width, 2, strides=2, use_bias=False)(x)
        x = block(layers.Concatenate()([skip, up]), width)
    return keras.Model(inputs, layers.Conv2D(CLASSES, 1)(x))


def test_the_plain_one_is_that_of_keras_layers():
    shape = (16, 8, 3)
    model = build(UNET, shape, "float64")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        twin = keras_twin(UNET.filters)
    finally:
        keras.config.set_dtype_policy(before)

    def as_keras(path, value):
        if (
            value.shape.rank == 4
            and path.endswith("layers/0/conv/kernel")
            and value.shape[0] == 1
            and "bias" not in path
        ):
            *_, inputs, outputs = value.shape
            if outputs != CLASSES:  # of the transposed convolution
                return tf.transpose(tf.reshape(value, [inputs, 2, 2, outputs // 4]), [1, 2, 3, 0])
        return value

    def in_order(pairs):
        """By layer as Keras has it: kernel before gamma, beta and bias."""
        names = ("kernel", "gamma", "beta", "bias")

        def place(path):
            segment, layer = (int(number) for number in (path.split("/")[1], path.split("/layers/")[1].split("/")[0]))
            return segment, layer, names.index(path.rsplit("/", 1)[1])

        return [as_keras(path, value) for path, value in sorted(pairs, key=lambda pair: place(pair[0]))]

    paths = model.trainable_paths
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign_add(0.1 * random.normal(size=variable.shape))
    weights = in_order(zip(paths, map(tf.convert_to_tensor, model.trainable_variables), strict=True))
    for variable, value in zip(twin.trainable_variables, weights, strict=True):
        variable.assign(value)
    np.testing.assert_allclose(model(images(shape)), twin(images(shape)), rtol=1e-10, atol=1e-10)
    with tf.GradientTape() as recorded:
        value = loss(twin(images(shape), training=True))
    expected = recorded.gradient(value, [variable.value for variable in twin.trainable_variables])
    _, *gradients = gradient_of(model, shape)
    made = in_order(zip(paths, map(tf.convert_to_tensor, gradients), strict=True))
    for one, other in zip(expected, made, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10 * np.abs(one).max())


def test_frozen_variables_have_no_gradient():
    model = build(replace(REVUNET, freeze=["segments/[0-3]/*"]))
    assert len(model.frozen) > 0
    assert 0 < model.frozen_segments < len(model.segments)
    assert all(np.any(gradient) for gradient in gradient_of(model))


def bytes_kept(memory):
    """The bytes of the maps that the backward pass reads from the forward pass."""
    model = build(RevUNetConfig(filters=[16] * 4, units=[3] * 4, memory=memory), (32, 32, 3))
    kept = {}

    @tf.function(autograph=False)
    def run():
        graph = tf.compat.v1.get_default_graph()
        x, mode = model.begin(tf.zeros([2, 32, 32, 3]), Mode(training=True, recording=True))
        backwards = []
        for segment in model.segments:
            x, backward = segment.forward(x, mode, lambda gradients: [each for _, each in gradients])
            backwards.append(backward)
        forward = {operation.name for operation in graph.get_operations()}
        d_x = tf.ones_like(x)
        for backward in reversed(backwards):
            x, d_x = backward(x, d_x)
        for operation in graph.get_operations():
            if operation.name not in forward and operation.type not in ("Shape", "ZerosLike"):
                kept.update({each.name: each for each in operation.inputs if each.op.name in forward})
        return d_x

    run.get_concrete_function()
    maps = [each for each in kept.values() if each.dtype.is_floating and each.shape.rank in (4, 5)]
    return sum(each.shape.num_elements() * each.dtype.size for each in maps if each.shape[0] == 2)


def test_reversal_keeps_less_than_a_third():
    assert bytes_kept("reverse") < bytes_kept("store") / 3


@pytest.mark.parametrize(
    ("config", "tells", "said"),
    [
        (LeNetConfig(), EACH, "asks for a class for each pixel; choose a model of kind revunet or unet"),
        (UNET, None, "tells a class for each pixel, and the task asks for something else"),
    ],
)
def test_a_model_that_tells_something_else_is_refused(config, tells, said):
    with pytest.raises(ConfigError, match=said):
        build_model(config, ModelSpec((32, 32, 3), CLASSES, tells=tells))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (UNetConfig(filters=[]), "one number of at least 1 per level"),
        (UNetConfig(norm_momentum=0.5), "no moving statistics"),
        (RevUNetConfig(filters=[16, 17], units=[1, 1]), "must be even"),
        (RevUNetConfig(units=[1]), "must hold 4 numbers"),
        (UNetConfig(memory="reverse"), "revunet_small"),
    ],
)
def test_rules(config, said):
    with pytest.raises(ConfigError, match=said):
        config.check()
