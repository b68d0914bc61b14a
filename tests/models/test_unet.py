"""U-Nets: images of any size, the same bits under every memory policy, gradients against TensorFlow's, the checks."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.errors import ConfigError
from accumtrain.fields import EACH
from accumtrain.models.build import build_model
from accumtrain.models.config import LeNetConfig, MlpConfig, ResNetConfig, RevUNetConfig, UNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.models.norms import EPSILON
from accumtrain.models.transformers.config import EncoderConfig, RevEncoderConfig, ViTConfig
from benchmarks.asked import bytes_asked_at_peak
from tests.models.transformers.gradients import fast_and_slow

CLASSES = 3
UNET, REVUNET = UNetConfig(filters=[8, 16, 16]), RevUNetConfig(filters=[16, 16, 32], units=[1, 1, 1])
BOTH = pytest.mark.parametrize("config", [UNET, REVUNET], ids=["unet", "revunet"])
ODD, EVEN, TINY, PIXEL = (13, 7, 3), (8, 12, 3), (2, 3, 3), (1, 1, 3)  # three levels halve the size twice


def build(config, shape=ODD, precision="float32"):
    """A model whose variables all differ from their simple first values."""
    model = build_model(config, ModelSpec(shape, CLASSES, precision, seed=1, tells=EACH))
    for number, variable in enumerate(model.learnable):
        variable.assign_add(0.1 * tf.random.stateless_normal(variable.shape, [number, 7], dtype=variable.dtype))
    return model


def images(shape=ODD):
    return tf.random.stateless_normal([2, *shape], [1, 2], dtype=tf.float64)


def loss(logits):
    weights = tf.random.stateless_normal(tf.shape(logits), [5, 6], dtype=tf.float64)
    return tf.reduce_sum(logits**2 + tf.cast(weights, logits.dtype) * logits)


def gradients_of(model, shape=ODD):
    """The loss, the gradient of each trained variable, the batch statistics, and what tells of inexact reversals."""
    found = {}

    def consume(gradients):
        found.update({variable.ref(): gradient for variable, gradient in gradients})
        return [gradient for _, gradient in gradients]

    mode = Mode(training=True, recording=True)
    value, _ = tape.gradient(model, images(shape), loss, mode, consume)
    assert {*found} == {variable.ref() for variable in model.trainable_variables}
    statistics = [mode.statistics[norm] for norm in model.norms]
    return value, [found[variable.ref()] for variable in model.trainable_variables], statistics, mode.inexact


@cache
def of_graph(kind, memory, norm, precision, shape):
    """What `gradients_of` gives in a graph, whose operations the graph optimizer may rewrite."""
    model = build(replace({"unet": UNET, "revunet": REVUNET}[kind], memory=memory, norm=norm), shape, precision)
    return tf.function(lambda: gradients_of(model, shape), autograph=False)()


def assert_same_bits(made, expected):
    for one, other in zip(*map(tf.nest.flatten, (made, expected)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("norm", "precision", "shape"),
    fast_and_slow(
        [("group", "float32", ODD), ("batch", "bfloat16", TINY)],
        [
            *product(("group", "batch"), ("float32", "bfloat16"), (ODD, EVEN, TINY)),
            *product(("group", "batch"), ("float16",), (ODD,)),
            ("group", "float64", ODD),  # batch norm has plain operations there, which the graph optimizer rewrites
        ],
    ),
)
def test_every_memory_policy_of_a_reversible_one_gives_the_same_bits(norm, precision, shape):
    *stored, _ = of_graph("revunet", "store", norm, precision, shape)
    for memory in ("recompute", "reverse"):
        *made, inexact = of_graph("revunet", memory, norm, precision, shape)
        assert_same_bits(made, stored)
        assert len(inexact) == (5 if memory == "reverse" else 0)
        assert not any(inexact)


@pytest.mark.parametrize(
    ("norm", "precision", "shape"),
    fast_and_slow([("batch", "float32", ODD)], product(("group", "batch"), ("float32", "bfloat16"), (ODD, TINY))),
)
def test_a_plain_one_recomputes_the_same_bits(norm, precision, shape):
    assert_same_bits(*(of_graph("unet", memory, norm, precision, shape) for memory in ("recompute", "store")))


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize(
    "config",
    [UNET, *(replace(REVUNET, snap_bits=0, memory=memory) for memory in ("store", "recompute", "reverse"))],
    ids=["unet", "stored", "recomputed", "reversed"],
)
def test_the_gradient_is_that_of_a_gradient_tape(config, norm):
    """A reversal of floats restores them up to rounding."""
    model = build(replace(config, norm=norm), precision="float64")
    with tf.GradientTape() as recorded:
        expected = loss(model(images(), Mode(training=True)))
    value, gradients, *_ = gradients_of(model)
    assert_near([value, *gradients], [expected, *recorded.gradient(expected, model.trainable_variables)])


def assert_near(made, expected):
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * np.max(np.abs(other)))


def by_plain_operations(model, x):
    """The logits of a plain U-Net with group norm, of its kernels by TensorFlow's operations."""

    def block(x, layers):
        for layer in layers:
            x = tf.nn.conv2d(x, layer.conv.kernel, 1, "SAME")
            count, height, width, channels = x.shape
            groups = tf.reshape(x, [count, height * width, channels // 8, 8])  # groups of 8 channels
            mean, variance = tf.nn.moments(groups, [1, 3], keepdims=True)
            norm = layer.activation.norm
            x = tf.reshape((groups - mean) / tf.sqrt(variance + EPSILON), x.shape) * norm.gamma + norm.beta
            x = tf.maximum(x, 0)
        return x

    def pool(x):
        _, height, width, _ = x.shape
        rest = [[0, 0], [0, height % 2], [0, width % 2], [0, 0]]
        return tf.nn.max_pool2d(tf.pad(x, rest, constant_values=-np.inf), 2, 2, "VALID")

    def double(x, layer, skip):
        outputs, inputs = skip.shape[-1], x.shape[-1]
        kernel = tf.transpose(tf.reshape(layer.conv.kernel, [inputs, 2, 2, outputs]), [1, 2, 3, 0])
        count, height, width, _ = x.shape
        x = tf.nn.conv2d_transpose(x, kernel, [count, 2 * height, 2 * width, outputs], 2)
        return tf.concat([skip, x[:, : skip.shape[1], : skip.shape[2]]], axis=-1)

    first, *others, last = (segment.layers for segment in model.segments)
    x, skips = block(x, first), []
    levels = len(others) // 3
    for layers in others[1 : 2 * levels : 2]:
        skips.append(x)
        x = block(pool(x), layers)
    for up, *layers in others[2 * levels :]:
        x = block(double(x, up, skips.pop()), layers)
    (head,) = last
    return tf.nn.conv2d(x, head.conv.kernel, 1, "SAME") + head.bias.bias


@pytest.mark.parametrize("shape", [ODD, EVEN], ids=["odd", "even"])
def test_a_plain_one_is_that_of_plain_operations(shape):
    model = build(UNET, shape, "float64")
    with tf.GradientTape() as recorded:
        logits = by_plain_operations(model, images(shape))
        expected = loss(logits)
    assert_near([model(images(shape))], [logits])
    value, gradients, *_ = gradients_of(model, shape)
    assert_near([value, *gradients], [expected, *recorded.gradient(expected, model.trainable_variables)])


@BOTH
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "float64"])
def test_each_pixel_of_images_of_any_size_has_logits_in_the_dtype_of_the_weights(config, precision):
    model = build(config, precision=precision)
    for shape, training in product((ODD, EVEN, TINY, PIXEL), (False, True)):
        logits = model(images(shape), Mode(training=training))
        assert logits.shape == (2, *shape[:2], CLASSES)
        assert logits.dtype == (tf.float64 if precision == "float64" else tf.float32)
        assert np.all(np.isfinite(logits))


@BOTH
def test_a_graph_takes_images_whose_size_it_does_not_know(config):
    model = build(config, precision="float64")
    call = tf.function(model, input_signature=[tf.TensorSpec([None, None, None, 3], tf.float64)], autograph=False)
    for shape in (ODD, EVEN, PIXEL):
        assert_near([call(images(shape))], [model(images(shape))])


@pytest.mark.parametrize(
    "config", [UNetConfig(filters=[8]), RevUNetConfig(filters=[12], units=[2])], ids=["unet", "revunet"]
)
def test_a_single_level_has_no_steps(config):
    _, gradients, *_ = gradients_of(build(config))
    assert all(np.any(gradient) for gradient in gradients)


@BOTH
def test_batch_norms_evaluate_by_moving_statistics_and_train_by_those_of_the_batch(config):
    model = build(replace(config, norm="batch"))
    assert model.norms
    mode = Mode(training=True, recording=True)
    trained, evaluated = model(images(), mode), model(images())
    assert {*mode.statistics} == {*model.norms}
    for norm, (mean, variance) in mode.statistics.items():
        norm.moving_mean.assign(mean)
        norm.moving_variance.assign(variance)
    assert np.max(np.abs(evaluated - trained)) > 0.1
    np.testing.assert_allclose(model(images()), trained, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(model(images(), Mode(training=True)), trained)


@BOTH
@pytest.mark.parametrize("freeze", ["segments/[0-3]/*", "segments/[24]/*", "segments/[5-8]/*", "*/gamma"])
def test_frozen_variables_have_no_gradient_and_the_others_have_theirs(config, freeze):
    """Of bits: those of the convolutions behind which all is frozen, too."""
    whole, some = build(config), build(replace(config, freeze=[freeze]))
    _, everything, *_ = gradients_of(whole)
    expected = dict(zip(whole.trainable_paths, everything, strict=True))
    _, gradients, *_, inexact = gradients_of(some)  # refuses those of others
    assert 0 < len(gradients) < len(everything)
    assert not any(inexact)
    for path, gradient in zip(some.trainable_paths, gradients, strict=True):
        np.testing.assert_array_equal(gradient, expected[path])


def bytes_at_peak(memory):
    shape = (64, 64, 3)
    model = build(RevUNetConfig(filters=[16, 16], units=[4, 2], memory=memory), shape)
    run = tf.function(lambda: gradients_of(model, shape)[:2], autograph=False)
    run()
    return bytes_asked_at_peak(run, workspace=False)


def test_a_reversal_takes_less_than_a_third_of_the_memory():
    assert bytes_at_peak("reverse") < bytes_at_peak("store") / 3


@pytest.mark.parametrize("family", [EncoderConfig, RevEncoderConfig])
@pytest.mark.parametrize("pool", ["mean", "token"])
def test_an_encoder_tells_a_class_for_each_token(family, pool):
    spec = ModelSpec((7,), CLASSES, inputs=("tokens",), vocabulary=11, tells=EACH)
    model = build_model(family(depth=1, width=16, heads=2, pool=pool), spec)
    tokens = tf.random.stateless_uniform([4, 7], [1, 2], 0, 11, tf.int32)
    logits = model(tokens)
    assert (logits.shape, logits.dtype) == ((4, 7, CLASSES), tf.float32)
    x, mode = model.begin(tokens, EVALUATION)
    *segments, last = model.segments
    *joins, head = last.layers
    for part in (*segments, *joins):
        x = part(x, mode)
    np.testing.assert_array_equal(head(x, mode), logits)
    assert x.shape[1] == 7 + (pool == "token")


VIT = ViTConfig(depth=1, width=16, heads=2, patch=4)
ASKED = "tells one answer for an example, and the task asks for a class for each pixel; choose a model of kind "


@pytest.mark.parametrize("config", [ResNetConfig(), LeNetConfig(), VIT], ids=lambda config: config.kind)
def test_a_model_of_whole_images_is_refused_where_each_pixel_is_asked_for(config):
    with pytest.raises(ConfigError) as refused:
        build(config, (32, 32, 3))
    said = str(refused.value)
    assert said.startswith(f"model={config.label}: {ASKED}")
    assert said.endswith(" revunet or unet, or another task")


@BOTH
def test_a_model_of_each_pixel_is_refused_where_images_are_asked_for(config):
    with pytest.raises(ConfigError) as refused:
        build_model(config, ModelSpec((32, 32, 3), CLASSES))
    said = str(refused.value)
    assert said.startswith(f"model={config.label}: tells a class for each pixel, and the task asks for something else")
    assert "resnet" in said
    assert "unet" not in said.partition(";")[2]


def test_where_no_model_tells_each_position_another_task_is_the_remedy():
    with pytest.raises(ConfigError, match=r"; choose another task$"):
        build_model(MlpConfig(), ModelSpec((4,), CLASSES, inputs=("arrays",), tells=EACH))


@pytest.mark.parametrize(
    ("make", "given", "rule", "remedy"),
    [
        (lambda: UNetConfig(filters=[]), "model.filters=[]", "one number of at least 1", "use model.filters=[32,64"),
        (lambda: UNetConfig(filters=[8, 0]), "model.filters=[8,0]", "one number of at least 1", "use model.filters="),
        (lambda: UNetConfig(norm_momentum=0.5), "model.norm_momentum=0.5", "no moving statistics", "model.norm=batch"),
        (lambda: UNetConfig(memory="reverse"), "model.memory=reverse", "not reversible", "model=revunet_small"),
        (lambda: RevUNetConfig(filters=[16, 17], units=[1, 1]), "model.filters=[16,17]", "even", "half of them"),
        (lambda: RevUNetConfig(units=[1]), "model.units=[1]", "must hold 4 numbers", "model.filters=[32,64,128,256]"),
        (lambda: RevUNetConfig(units=[]), "model.units=[]", "must hold 4 numbers", "model.filters=[32,64,128,256]"),
        (lambda: RevUNetConfig(units=[1, 0, 1, 1]), "model.units=[1,0,1,1]", "of at least 1", "one per level"),
    ],
)
def test_rules_name_the_value_the_rule_and_the_remedy(make, given, rule, remedy):
    with pytest.raises(ConfigError) as refused:
        make().check()
    assert str(refused.value).startswith(given)
    assert rule in str(refused.value)
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (UNetConfig(), "unet_small"),
        (RevUNetConfig(filters=[64, 128, 256, 512, 1024], units=[1] * 5), "revunet_base"),
        (UNetConfig(filters=[8, 16]), "unet_2x8"),
    ],
)
def test_labels(config, label):
    assert config.label == label
