"""Transformers against plain operations, and the bits of their memory policies."""

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.fixed_point import FixedPoint
from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.backprop.pullback import pullback, tape_pullback
from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.layers import Initializer, ModelSpec, Numerics
from accumtrain.models.transformers import attention
from accumtrain.models.transformers.activations import GELU
from accumtrain.models.transformers.attention import Attention
from accumtrain.models.transformers.config import (
    EncoderConfig,
    RevEncoderConfig,
    RevViTConfig,
    TransformerConfig,
    ViTConfig,
)
from accumtrain.models.transformers.layers import LayerNorm, LayerScale, Linear
from tests.models.transformers import reference
from tests.models.transformers.gradients import (
    assert_gradients_are_of,
    assert_same_bits,
    fast_and_slow,
    gradients_of,
)

SMALL = {"depth": 3, "width": 16, "heads": 2}
LENGTHS = (7, 2, 5, 1)
MASK = tf.constant([[True] * 5, [True] * 3 + [False] * 2])
NUMBERS = FixedPoint(22)
FAMILIES = (ViTConfig, RevViTConfig, EncoderConfig, RevEncoderConfig)


def small(family, **keys) -> TransformerConfig:
    return family(**SMALL, **({"patch": 4} if issubclass(family, ViTConfig) else {}), **keys)


def build(config, precision="float64", tells=None):
    """A model whose variables all differ from their simple first values."""
    shape, vocabulary, classes = ((7,), 11, 11 if tells else 3) if config.takes == "tokens" else ((8, 12, 3), 0, 3)
    spec = ModelSpec(shape, classes, precision, inputs=config.takes, vocabulary=vocabulary, tells=tells)
    model = build_model(config, spec)
    for number, variable in enumerate(model.trainable_variables):
        variable.assign_add(0.2 * tf.random.stateless_normal(variable.shape, [number, 7], dtype=variable.dtype))
    return model


def inputs_for(config, dtype=tf.float64):
    if config.takes != "tokens":
        return tf.random.stateless_normal([4, 8, 12, 3], [1, 2], dtype=dtype)
    tokens = tf.random.stateless_uniform([4, 7], [1, 2], 0, 11, tf.int32)
    return tf.where(tf.range(7) < tf.constant(LENGTHS)[:, None], tokens, -1)


@pytest.mark.parametrize(
    ("family", "pool"),
    fast_and_slow([(RevViTConfig, "mean"), (RevEncoderConfig, "token")], product(FAMILIES, ("token", "mean"))),
)
def test_logits_and_gradients_are_those_of_plain_operations(family, pool):
    """Streams of float64 have 54 bits behind the point."""
    config = small(family, pool=pool)
    model, inputs = build(config), inputs_for(config)
    assert_gradients_are_of(model, inputs, lambda: reference.classify(model, config, inputs))


def waves(position, channels):
    angles = [position / 10_000 ** (2 * wave / channels) for wave in range(channels // 2)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


@pytest.mark.parametrize(
    ("family", "pool", "positions"),
    [
        (
            ViTConfig,
            "token",
            [[0] * 16, *(waves(row, 8) + waves(column, 8) for row in range(2) for column in range(3))],
        ),
        (EncoderConfig, "mean", [waves(position, 16) for position in range(7)]),
    ],
)
def test_fixed_positions_are_sines_and_cosines(family, pool, positions):
    config = small(family, pool=pool, positions="sincos")
    model, inputs = build(config), inputs_for(config)
    weights = {**model.named, "segments/0/layers/0/positions": tf.constant(positions, tf.float64)}
    expected = reference.classify(SimpleNamespace(named=weights), config, inputs)
    assert "segments/0/layers/0/positions" not in model.named
    np.testing.assert_allclose(model(inputs), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", [pytest.param(EncoderConfig, marks=pytest.mark.slow), RevEncoderConfig])
def test_tokens_at_places_are_told_as_by_plain_operations(family):
    config = small(family)
    model = build(config, tells="masked")
    inputs = {"tokens": inputs_for(config), "positions": tf.constant([[0, 6], [1, 0], [4, 2], [0, 0]])}
    assert_gradients_are_of(model, inputs, lambda: reference.tell_tokens(model, config, inputs))


def test_the_table_that_embedding_and_head_share_has_one_path():
    model = build(small(RevEncoderConfig), tells="masked")
    assert "segments/0/layers/0/embed/embedding" in model.trainable_paths
    assert not [path for path in model.named if "table" in path]
    assert len(model.named) == len(model.trainable_variables)


def test_the_class_token_moves_places_by_one():
    tokens, positions = inputs_for(small(EncoderConfig)), tf.constant([[0, 6], [1, 0], [4, 2], [0, 0]])
    model = build(small(EncoderConfig, pool="token"), tells="masked")
    told = model({"tokens": tokens, "positions": positions})
    changed = tf.tensor_scatter_nd_update(
        model.named["segments/0/layers/0/positions"], [[7]], [tf.ones(16, tf.float64)]
    )
    model.named["segments/0/layers/0/positions"].assign(changed)  # of token 6, which example 0 alone shows
    moved = np.abs(model({"tokens": tokens, "positions": positions}) - told).max(axis=2)
    assert (moved[0] > 0).all()
    assert (moved[1:] == 0).all()


ALL_KEYS = {"drop_path": 0.3, "layer_scale": 0.5, "pool": "token"}


@pytest.mark.parametrize(
    ("family", "keys", "precision"),
    fast_and_slow(
        [(RevViTConfig, ALL_KEYS, "float32"), (RevEncoderConfig, {}, "bfloat16"), (EncoderConfig, ALL_KEYS, "float32")],
        product(FAMILIES, ({}, ALL_KEYS), ("float32", "bfloat16")),
    ),
)
def test_all_policies_have_the_same_bits(family, keys, precision):
    config = small(family, **keys)
    inputs = inputs_for(config, tf.float32)
    kept = replace(config, memory=config.policies[-1], kept_blocks=1)
    stored, *others = (
        gradients_of(build(each, precision), inputs)
        for each in (*(config.with_policy(policy) for policy in config.policies), kept)
    )
    assert all(np.isfinite(gradient).all() for gradient in stored[1])
    for other in others:
        assert_same_bits(other, stored)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("depth", [12, 24, 48])
@pytest.mark.parametrize("family", [RevViTConfig, RevEncoderConfig])
def test_deep_models_are_reversed_to_the_bit(family, depth, precision):
    config = replace(small(family), depth=depth)
    inputs = inputs_for(config, tf.float32)
    stored, *others = (gradients_of(build(config.with_policy(policy), precision), inputs) for policy in config.policies)
    for other in others:
        assert_same_bits(other, stored)


@pytest.mark.parametrize(("family", "pool"), [(EncoderConfig, "token"), (RevEncoderConfig, "mean")])
def test_padding_changes_nothing(family, pool):
    """The logits of a padded text are those of the text alone, whatever is in the vectors of its padding."""
    model, inputs = build(small(family, pool=pool)), inputs_for(small(family))
    padded = model(inputs)
    for logits, tokens, length in zip(padded, inputs, LENGTHS, strict=True):
        np.testing.assert_allclose(logits, model(tokens[None, :length])[0], rtol=0, atol=1e-12)


def test_an_example_of_padding_alone_has_finite_gradients():
    config = small(RevEncoderConfig)
    _, gradients = gradients_of(build(config, "float32"), tf.fill([4, 7], -1))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_queries_in_parts_have_the_gradients_of_all_at_once(monkeypatch):
    config = small(RevViTConfig, memory="store")
    model, inputs = build(config), inputs_for(config)
    expected = gradients_of(model, inputs)
    monkeypatch.setattr(attention, "QUERIES", 3)  # of 7
    for found, wanted in zip(gradients_of(model, inputs)[1], expected[1], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-11)


def test_queries_in_parts_have_the_same_bits_stored_and_reversed(monkeypatch):
    monkeypatch.setattr(attention, "QUERIES", 3)
    config = small(RevViTConfig)
    stored, reversed_ = (
        gradients_of(build(config.with_policy(policy), "float32"), inputs_for(config, tf.float32))
        for policy in ("store", "reverse")
    )
    assert_same_bits(reversed_, stored)


WEIGHTS = {
    name: tf.random.stateless_normal(shape, [number, 9], dtype=tf.float64)
    for number, (name, shape) in enumerate(
        {"/kernel": [12, 6], "/bias": [6], "/gamma": [12], "/beta": [12], "/scale": [12]}.items()
    )
}


@pytest.mark.parametrize(
    ("layer", "names", "plain"),
    [
        (Linear(Initializer(1, tf.float64), 12, 6), ["kernel", "bias"], lambda x, of: reference.linear(x, of, "")),
        (LayerNorm(Initializer(2, tf.float64), 12), ["gamma", "beta"], lambda x, of: reference.norm(x, of, "")),
        (LayerScale(Initializer(3, tf.float64), 12, 0.5), ["gamma"], lambda x, of: x * of["/gamma"]),
        (GELU(), [], lambda x, of: reference.gelu(x)),
        (Attention(2), [], lambda x, of: reference.attend(x, 2, None)),
        (Attention(2), ["mask"], lambda x, of: reference.attend(x, 2, MASK)),
    ],
)
def test_a_layer_and_its_gradient_are_those_of_plain_operations(layer, names, plain):
    x = tf.random.stateless_normal([2, 5, 12], [1, 2], dtype=tf.float64)
    mode = Mode(training=True).with_side({"mask": MASK} if names == ["mask"] else {})
    variables = [getattr(layer, name) for name in names if name != "mask"]
    for variable in variables:
        variable.assign(WEIGHTS[f"/{variable.name.split(':')[0]}"])
    with tf.GradientTape() as tape:
        tape.watch([x, WEIGHTS])
        expected = plain(x, WEIGHTS)
    d_y = tf.random.stateless_normal(expected.shape, [3, 4], dtype=tf.float64)
    wanted = tape.gradient(expected, [x, *(WEIGHTS[f"/{name}"] for name in names if name != "mask")], d_y)
    for y, backward in (pullback(layer, x, mode), tape_pullback(layer, x, mode)):
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-13)
        d_x, gradients = backward(d_y)
        known = {variable.ref(): gradient for variable, gradient in gradients}
        for found, of_plain in zip((d_x, *(known[each.ref()] for each in variables)), wanted, strict=True):
            np.testing.assert_allclose(found, of_plain, rtol=0, atol=1e-12)


def test_a_norm_reads_a_stream_of_numbers_as_their_values():
    values = tf.random.stateless_normal([2, 5, 12], [1, 2])
    numbers = NUMBERS.encode(values * NUMBERS.scale(tf.float32))
    mode = Mode(training=True)
    plain, of_stream = LayerNorm(Initializer(1), 12), LayerNorm(Initializer(1), 12, Numerics(tf.float32, NUMBERS))
    (y, backward), (expected, wanted) = (
        layer.pullback(x, mode) for layer, x in ((of_stream, numbers), (plain, NUMBERS.read(numbers)))
    )
    np.testing.assert_allclose(y, expected, atol=1e-6)
    d_y = tf.random.stateless_normal(y.shape, [3, 4])
    np.testing.assert_allclose(backward(d_y)[0], wanted(d_y)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (ViTConfig(), 5_717_416),
        (ViTConfig(width=384, heads=6), 22_050_664),
        (ViTConfig(width=768, heads=12), 86_567_656),
        (RevViTConfig(width=768, heads=12), 86_567_656 + 768 * 1000 + 2 * 768),  # the head and its norm read both
    ],
)
def test_vision_transformers_have_as_many_parameters_as_in_the_papers(config, published):
    """ViT-Ti, S and B at 224 pixels and 1,000 classes (Steiner et al. 2021); Rev-ViT-B (Mangalam et al. 2022)."""
    assert build_model(config, ModelSpec((224, 224, 3), 1000, draws=False)).params == published


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (EncoderConfig(), 4_385_920),
        (EncoderConfig(depth=4, width=512, heads=8), 28_763_648),
        (EncoderConfig(depth=12, width=768, heads=12), 109_482_240),
    ],
)
def test_encoders_have_as_many_parameters_as_bert(config, published):
    """Of BERT's published numbers, the pooler and the two segment vectors are not there; the last norm is its first."""
    model = build_model(config, ModelSpec((512,), 2, inputs=("tokens",), vocabulary=30_522, draws=False))
    head = 2 * (config.width + 1)
    assert model.params - head == published - config.width * (config.width + 1) - 2 * config.width


def test_patches_must_fill_the_images():
    with pytest.raises(ConfigError, match=r"model.patch=16: images are 8 x 12.*use model.patch=1,"):
        build_model(ViTConfig(), ModelSpec((8, 12, 3), 10))


def test_evaluations_use_floats_and_give_the_logits_of_training():
    config = small(RevViTConfig)
    model, inputs = build(config, "float32"), inputs_for(config, tf.float32)
    trained = model(inputs, Mode(training=True))
    np.testing.assert_allclose(model(inputs, EVALUATION), trained, atol=1e-4)
