"""Causal decoders against NumPy and plain operations, what their tokens see, and the bits of their memory policies."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.fixed_point import FixedPoint
from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.backprop.pullback import pullback, tape_pullback
from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.layers import Initializer, ModelSpec, Numerics
from accumtrain.models.transformers import attention
from accumtrain.models.transformers.activations import SwiGLU
from accumtrain.models.transformers.attention import Attention
from accumtrain.models.transformers.config import DecoderConfig, EncoderConfig, RevDecoderConfig
from accumtrain.models.transformers.layers import RMSNorm
from accumtrain.models.transformers.rotary import Rotary, frequencies_of
from benchmarks.asked import bytes_asked_at_peak
from tests.models.transformers import reference
from tests.models.transformers.gradients import assert_same_bits, fast_and_slow, gradients_of, loss_of

TOKENS, WORDS = 9, 11
SMALL = {"depth": 2, "width": 16, "heads": 4}
GROUPED = {"kv_heads": 2}
AS_GPT2 = {"norm": "layer", "positions": "learned", "activation": "gelu", "bias": True, "mlp_ratio": 4.0}
ALL_KEYS = {"kv_heads": 1, "drop_path": 0.3, "layer_scale": 0.5, "bias": True, "tied": False}
FAMILIES = (DecoderConfig, RevDecoderConfig)
LENGTHS = (9, 2, 5, 1)  # of texts in rows of their own
ROWS = ((4, 5), (2, 3, 4), (9,), (1, 6))  # lengths of the documents of packed rows; the last one has padding


def build(config, precision="float64", told="next", tokens=TOKENS):
    """A model whose variables all differ from their simple first values."""
    classes = WORDS if told else 3
    spec = ModelSpec((tokens,), classes, precision, inputs=("tokens",), vocabulary=WORDS, tells=told)
    model = build_model(config, spec)
    for number, variable in enumerate(model.trainable_variables):
        variable.assign_add(0.2 * tf.random.stateless_normal(variable.shape, [number, 7], dtype=variable.dtype))
    return model


def padded(lengths=LENGTHS, tokens=TOKENS):
    drawn = tf.random.stateless_uniform([len(lengths), tokens], [1, 2], 0, WORDS, tf.int32)
    return tf.where(tf.range(tokens) < tf.constant(lengths)[:, None], drawn, -1)


def packed(rows=ROWS, tokens=TOKENS):
    documents = np.full([len(rows), tokens], -1, np.int32)
    for row, lengths in zip(documents, rows, strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    return {"tokens": padded(tuple(map(sum, rows)), tokens), "documents": tf.constant(documents)}


INPUTS = {"padded": padded(), "packed": packed()}
of_inputs = pytest.mark.parametrize("inputs", INPUTS)
of_families = pytest.mark.parametrize("family", FAMILIES)
in_parts = pytest.mark.parametrize("queries", [4, 256])


def shown(inputs):
    """The tokens and the documents of inputs, as arrays."""
    if isinstance(inputs, dict):
        return inputs["tokens"].numpy(), inputs["documents"].numpy()
    return inputs.numpy(), np.zeros(inputs.shape, np.int32)


# ---- values and gradients ----


@of_inputs
@in_parts
@pytest.mark.parametrize("keys", [GROUPED, AS_GPT2, ALL_KEYS], ids=["grouped", "as GPT-2", "all keys"])
@of_families
def test_logits_are_those_of_numpy(monkeypatch, family, keys, queries, inputs):
    monkeypatch.setattr(attention, "QUERIES", queries)
    config = family(**SMALL, **{key: value for key, value in keys.items() if key != "layer_scale"})
    model = build(config)
    tokens, documents = shown(INPUTS[inputs])
    weights = {path: variable.numpy() for path, variable in model.named.items()}
    expected = reference.decode(weights, config, tokens, documents)
    for mode in (EVALUATION, Mode(training=True)) if config.drop_path == 0 else (EVALUATION,):
        found = model(INPUTS[inputs], mode)
        np.testing.assert_allclose(found[tokens >= 0], expected[tokens >= 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "keys"), [(DecoderConfig, AS_GPT2), (RevDecoderConfig, GROUPED), (RevDecoderConfig, {"tied": False})]
)
def test_the_gradient_is_the_slope_of_the_loss(family, keys):
    """Along a random direction of all variables, by a central difference."""
    model, inputs = build(family(**SMALL, **keys)), packed()
    variables = model.trainable_variables
    step = [
        1e-6 * tf.random.stateless_normal(each.shape, [number, 8], dtype=each.dtype)
        for number, each in enumerate(variables)
    ]
    _, gradients = gradients_of(model, inputs)
    found = sum(tf.reduce_sum(gradient * by) for gradient, by in zip(gradients, step, strict=True))
    losses = []
    for sign in (1, -2):
        for variable, by in zip(variables, step, strict=True):
            variable.assign_add(sign * by)
        losses.append(loss_of(model(inputs)))
    np.testing.assert_allclose(found, (losses[0] - losses[1]) / 2, rtol=1e-7)


@of_families
def test_a_class_is_told_from_the_last_token(family):
    model, inputs = build(family(**SMALL), told=None), padded()
    whole = model(inputs)
    assert whole.shape == [4, 3]
    for logits, tokens, length in zip(whole, inputs, LENGTHS, strict=True):
        np.testing.assert_allclose(logits, model(tokens[None, :length])[0], rtol=0, atol=1e-12)
    types = tf.cast(inputs > 3, tf.int32)  # of the tokens of pairs of texts, which are left out
    np.testing.assert_array_equal(model({"tokens": inputs, "types": types}), whole)
    changed = model(tf.where(inputs >= 0, tf.reverse(inputs, [1]), inputs))
    assert np.abs(changed - whole).max() > 1e-3


def turn(x, places, theta):
    """Plain operations: `reference.turned` in real numbers."""
    half = x.shape[-1] // 2
    angles = tf.constant(np.outer(places, theta ** (-np.arange(half) / half)))
    rows = [
        [tf.cos(angles), -tf.sin(angles)],
        [tf.sin(angles), tf.cos(angles)],
    ]
    parts = x[..., :half], x[..., half:]
    return tf.concat([sum(a * b for a, b in zip(row, parts, strict=True)) for row in rows], -1)


def attend(x, heads, kv_heads, theta=None, documents=None):
    """Each head by itself, with keys and values repeated; hidden keys have no weight."""
    size, tokens = x.shape[-1] // (heads + 2 * kv_heads), x.shape[1]
    parts = [x[..., head * size : (head + 1) * size] for head in range(heads + 2 * kv_heads)]
    weights = tf.linalg.band_part(tf.ones([tokens, tokens], x.dtype), -1, 0)
    places = np.arange(tokens)
    if documents is not None:
        weights *= tf.cast(documents[:, None, :] == documents[:, :, None], x.dtype)
        places = np.stack([[(row[:at] == row[at]).sum() for at in range(tokens)] for row in documents.numpy()])
    outputs = []
    for head in range(heads):
        group = head * kv_heads // heads
        q, k, v = parts[head], parts[heads + group], parts[heads + kv_heads + group]
        if theta is not None:
            of_row = [places] * len(x) if documents is None else places
            q, k = (tf.stack([turn(*row, theta) for row in zip(each, of_row, strict=True)]) for each in (q, k))
        weight = tf.exp(tf.einsum("nqc,nkc->nqk", q, k) / np.sqrt(size)) * weights
        outputs.append(tf.einsum("nqk,nkc->nqc", weight / tf.reduce_sum(weight, -1, keepdims=True), v))
    return tf.concat(outputs, -1)


def rms(x, gamma):
    return x / tf.sqrt(tf.einsum("...c,...c->...", x, x)[..., None] / x.shape[-1] + 1e-6) * gamma


def gate(x):
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return first / (1 + tf.exp(-first)) * second


DOCUMENTS = tf.constant([[0] * 3 + [1] * 4, [3] * 5 + [4] * 2])
PLACES = tf.constant([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1]])
GAMMA = tf.random.stateless_normal([16], [1, 9], dtype=tf.float64)
ROTARY = Rotary(frequencies_of(4, 100.0))
LAYERS = {
    "RMS norm": (RMSNorm(Initializer(2, tf.float64), 16), lambda x: rms(x, GAMMA)),
    "SwiGLU": (SwiGLU(), gate),
    "causal": (Attention(2, causal=True), lambda x: attend(x[..., :12], 2, 2)),
    "grouped": (Attention(2, kv_heads=1, causal=True), lambda x: attend(x, 2, 1)),
    "rotary": (Attention(2, kv_heads=1, causal=True, rotary=ROTARY), lambda x: attend(x, 2, 1, 100.0)),
    "documents": (
        Attention(2, kv_heads=1, causal=True, rotary=ROTARY),
        lambda x: attend(x, 2, 1, 100.0, DOCUMENTS),
    ),
}


@in_parts
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradient_are_those_of_plain_operations(monkeypatch, name, queries):
    monkeypatch.setattr(attention, "QUERIES", queries)
    layer, plain = LAYERS[name]
    x = tf.random.stateless_normal([2, 7, 12 if name == "causal" else 16], [1, 2], dtype=tf.float64)
    side = {"documents": DOCUMENTS, "places": PLACES} if name == "documents" else {}
    mode = Mode(training=True).with_side({"mask": tf.zeros([2, 7], tf.bool), **side})  # which causal attention ignores
    variables = [layer.gamma] if name == "RMS norm" else []
    for variable in variables:
        variable.assign(GAMMA)
    with tf.GradientTape() as tape:
        tape.watch([x, GAMMA])
        expected = plain(x)
    d_y = tf.random.stateless_normal(expected.shape, [3, 4], dtype=tf.float64)
    wanted = tape.gradient(expected, [x, *([GAMMA] if variables else [])], d_y)
    for y, backward in (pullback(layer, x, mode), tape_pullback(layer, x, mode)):
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)
        d_x, gradients = backward(d_y)
        known = {variable.ref(): gradient for variable, gradient in gradients}
        for found, of_plain in zip((d_x, *(known[each.ref()] for each in variables)), wanted, strict=True):
            np.testing.assert_allclose(found, of_plain, rtol=0, atol=1e-11)


def test_an_rms_norm_reads_a_stream_of_numbers_as_their_values():
    numbers, mode = FixedPoint(22), Mode(training=True)
    stream = numbers.encode(tf.random.stateless_normal([2, 5, 12], [1, 2]) * numbers.scale(tf.float32))
    plain, of_stream = RMSNorm(Initializer(1), 12), RMSNorm(Initializer(1), 12, Numerics(tf.float32, numbers))
    (y, backward), (expected, wanted) = (
        layer.pullback(x, mode) for layer, x in ((of_stream, stream), (plain, numbers.read(stream)))
    )
    np.testing.assert_allclose(y, expected, atol=1e-6)
    d_y = tf.random.stateless_normal(y.shape, [3, 4])
    np.testing.assert_allclose(backward(d_y)[0], wanted(d_y)[0], atol=1e-6)


# ---- what a token sees ----


def rows_of(logits):
    """The bits of the logits of each token, [N, T, ...]."""
    return tf.cast(logits, tf.float32).numpy().view(np.uint32)


@in_parts
@of_inputs
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@of_families
def test_no_token_leaks_to_the_bit(monkeypatch, family, precision, inputs, queries):
    """A token changes the logits of itself and of all behind it in its document, and no other."""
    monkeypatch.setattr(attention, "QUERIES", queries)
    model = build(family(**SMALL, **GROUPED), precision)
    call = tf.function(lambda given: model(given, Mode(training=True)), autograph=False)
    tokens, documents = shown(INPUTS[inputs])

    def logits_of(tokens):
        return rows_of(call(tokens if inputs == "padded" else {"tokens": tokens, "documents": documents}))

    before = logits_of(tf.constant(tokens))
    for at in range(TOKENS):
        changed = tokens.copy()
        changed[:, at] = (changed[:, at] + 1) % WORDS
        differs = (logits_of(tf.constant(changed)) != before).any(-1)
        sees = (documents == documents[:, at : at + 1]) & (np.arange(TOKENS) >= at)
        is_token = tokens[:, at] >= 0
        assert not differs[~sees].any()
        assert differs[is_token, at].all()
        assert differs[is_token][sees[is_token]].mean() > 0.9


@in_parts
@pytest.mark.parametrize("keys", [GROUPED, AS_GPT2], ids=["grouped", "as GPT-2"])
@of_families
def test_packed_rows_have_the_logits_and_gradients_of_rows_of_their_own(monkeypatch, family, keys, queries):
    monkeypatch.setattr(attention, "QUERIES", queries)
    model, inputs = build(family(**SMALL, **keys, memory="store")), packed()
    tokens, documents = shown(inputs)
    places = [(row, np.flatnonzero(documents[row] == number)) for row in range(4) for number in range(len(ROWS[row]))]
    apart = np.full([len(places), TOKENS], -1, np.int32)
    for text, (row, columns) in zip(apart, places, strict=True):
        text[: len(columns)] = tokens[row, columns]
    where = np.array([(row, column) for row, columns in places for column in columns])
    where_apart = np.array([(text, at) for text, (_, columns) in enumerate(places) for at in range(len(columns))])
    factors = tf.random.stateless_normal([len(where), WORDS], [5, 6], dtype=tf.float64)
    found, wanted = (
        gradients_of(model, given, lambda logits, at=at: tf.reduce_sum(tf.gather_nd(logits, at) * factors))
        for given, at in ((inputs, where), (tf.constant(apart), where_apart))
    )
    np.testing.assert_allclose(
        tf.gather_nd(model(inputs), where), tf.gather_nd(model(apart), where_apart), rtol=0, atol=1e-12
    )
    for own, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-12 * max(1, np.abs(other).max()))


# ---- the bits of memory policies ----


def assert_policies_agree(config, precision, inputs, **changes):
    stored, *others = (
        gradients_of(build(each, precision, **changes), inputs)
        for each in (
            *(config.with_policy(policy) for policy in dict.fromkeys(("store", *config.policies))),
            replace(config, memory=config.policies[-1], kept_blocks=1),
        )
    )
    assert all(np.isfinite(gradient).all() for gradient in stored[1])
    for other in others:
        assert_same_bits(other, stored)


@pytest.mark.parametrize(
    ("family", "keys", "precision", "inputs", "queries"),
    fast_and_slow(
        [
            (RevDecoderConfig, "grouped", "float32", "packed", 4),
            (RevDecoderConfig, "all keys", "bfloat16", "padded", 256),
            (RevDecoderConfig, "as GPT-2", "bfloat16", "packed", 4),
            (DecoderConfig, "grouped", "bfloat16", "padded", 4),
            (DecoderConfig, "all keys", "float32", "packed", 256),
        ],
        product(FAMILIES, ("grouped", "as GPT-2", "all keys"), ("float32", "bfloat16"), INPUTS, (4, 256)),
    ),
)
def test_all_policies_have_the_same_bits(monkeypatch, family, keys, precision, inputs, queries):
    monkeypatch.setattr(attention, "QUERIES", queries)
    given = {"grouped": GROUPED, "as GPT-2": AS_GPT2, "all keys": ALL_KEYS}[keys]
    assert_policies_agree(family(**SMALL, **given), precision, INPUTS[inputs])


@pytest.mark.slow
@in_parts
@of_inputs
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("depth", [12, 24])
def test_deep_decoders_are_reversed_to_the_bit(monkeypatch, depth, precision, inputs, queries):
    monkeypatch.setattr(attention, "QUERIES", queries)
    config = RevDecoderConfig(**{**SMALL, "depth": depth}, **GROUPED)
    assert_policies_agree(config, precision, INPUTS[inputs])


# ---- variables and refusals ----


@pytest.mark.parametrize(
    ("config", "words", "parameters"),
    [
        (DecoderConfig(depth=12, width=768, heads=12, **AS_GPT2), 50_257, 124_439_808),
        (DecoderConfig(depth=30, width=576, heads=9, kv_heads=3, mlp_ratio=8 / 3), 49_152, 134_515_008),
        (DecoderConfig(), 30_522, 4_308_864),
        (DecoderConfig(depth=4, width=512, heads=8), 30_522, 28_476_928),
        (DecoderConfig(depth=12, width=768, heads=12), 30_522, 110_164_224),
    ],
    ids=["GPT-2", "SmolLM", "tiny", "small", "base"],
)
def test_decoders_have_as_many_parameters_as_published_ones(config, words, parameters):
    """GPT-2 (Radford et al. 2019), SmolLM-135M (2024), which is built as Llama, and those of docs/transformers.md."""
    spec = ModelSpec((1024,), words, inputs=("tokens",), vocabulary=words, tells="next", draws=False)
    assert build_model(config, spec).params == parameters


def test_the_table_that_embedding_and_head_share_has_one_path():
    paths = {tied: [*build(DecoderConfig(**SMALL, tied=tied)).named] for tied in (True, False)}
    assert [path for path in paths[False] if path not in paths[True]] == ["segments/3/layers/0/vectors"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"heads": 6, "width": 96, "kv_heads": 4}, r"model.kv_heads=4: .* model.heads=6; use model.kv_heads=2"),
        (
            {"heads": 2, "width": 6},
            r"model.width=6 and model.heads=2: .* 3 channels .*; use model.width=8, or ",
        ),
        ({"positions": "learned", "theta": 5.0}, r"model.theta=5.0: .* no angles; leave it out"),
        ({"heads": 3}, r"each head has width / heads channels, a whole number; use model.width=129"),
        ({"kept_blocks": 1}, r"model.kept_blocks=1: model.memory=store keeps everything"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        DecoderConfig(**keys).check()


@pytest.mark.parametrize(
    ("family", "told", "message"),
    [
        (DecoderConfig, "masked", "model=decoder_2x16: .* task=masked_tokens .*; use model=encoder_tiny"),
        (EncoderConfig, "next", "model=encoder_2x16: .*; use model=decoder_tiny, or task=masked_tokens"),
    ],
)
def test_a_task_that_the_model_cannot_do_is_refused(family, told, message):
    with pytest.raises(ConfigError, match=message):
        build(family(**SMALL), told=told)


# ---- memory ----


def peak_bytes(config, tokens):
    """What a micro-step of one packed row asks for at its peak."""
    model = build(config, "float32", tokens=tokens)
    inputs = packed(((tokens // 2, tokens // 3),), tokens)

    @tf.function(autograph=False)
    def run():
        sums = []

        def consume(gradients):
            sums.extend(tf.reduce_sum(tf.convert_to_tensor(gradient)) for _, gradient in gradients)
            return []

        mode = Mode(training=True, recording=True)
        return tape.gradient(model, inputs, tf.reduce_mean, mode, consume)[0], sums

    run()  # traces
    return bytes_asked_at_peak(run)


@pytest.mark.parametrize(
    ("family", "memory"),
    fast_and_slow([(DecoderConfig, "store")], [(DecoderConfig, "recompute"), (RevDecoderConfig, "reverse")]),
)
def test_memory_grows_with_the_number_of_tokens_and_not_its_square(family, memory):
    peaks = [peak_bytes(family(**SMALL, memory=memory), tokens) for tokens in (1024, 2048, 4096)]
    shares = 4 * SMALL["heads"] * SMALL["depth"] * 4096**2
    assert peaks[1] < 2.6 * peaks[0]
    assert peaks[2] < 2.6 * peaks[1] < shares
