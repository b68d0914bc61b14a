"""Continuations by kept keys and values, against the whole pass of each text alone; and how tokens are drawn."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.fields import NEXT
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.transformers import attention, continuation
from accumtrain.models.transformers.config import DecoderConfig, RevDecoderConfig
from accumtrain.models.transformers.continuation import Sampling, continue_texts

VOCABULARY, TOKENS, COUNT, END = 50, 24, 14, 7
LENGTHS = (1, 5, 9, 23, 24, 12)
DECODERS = {
    "grouped": DecoderConfig(width=16, heads=4, kv_heads=2),
    "learned": DecoderConfig(width=16, heads=2, positions="learned", norm="layer", activation="gelu", bias=True),
    "reversible": RevDecoderConfig(width=16, heads=2),
}


def draw_model(config, vocabulary=VOCABULARY):
    spec = ModelSpec((TOKENS,), vocabulary, "float64", 0, inputs=("tokens",), vocabulary=vocabulary, tells=NEXT)
    model = build_model(config, spec)
    for number, variable in enumerate(model.trainable_variables):
        noise = tf.random.stateless_normal(variable.shape, [1, number], dtype=variable.dtype)
        variable.assign_add(0.3 * noise)
    return model


def draw_prompts(vocabulary=VOCABULARY):
    tokens = np.random.default_rng(0).integers(0, vocabulary, [len(LENGTHS), TOKENS], np.int32)
    tokens[np.arange(TOKENS) >= np.array(LENGTHS)[:, np.newaxis]] = -1
    return tokens


def most_probable(logits, _):
    return Sampling().choose(logits, None)


def continue_alone(model, tokens):
    """One text, without padding, read whole for each token."""
    text, found = tokens[tokens >= 0].tolist(), []
    while len(found) < COUNT and len(text) < TOKENS:
        new = int(np.argmax(model(tf.constant([text], tf.int32))[0, -1]))
        if new == END:
            break
        text.append(new)
        found.append(new)
    return found + [-1] * (COUNT - len(found))


@pytest.mark.parametrize("queries", [256, 7])
@pytest.mark.parametrize("name", DECODERS)
def test_each_text_goes_on_as_it_would_alone(name, queries, monkeypatch):
    monkeypatch.setattr(attention, "QUERIES", queries)
    monkeypatch.setattr(continuation, "QUERIES", queries)
    model, tokens = draw_model(DECODERS[name]), draw_prompts()
    compute = tf.function(lambda given: continue_texts(model, given, COUNT, most_probable, END), autograph=False)
    found = compute(tf.constant(tokens)).numpy()
    assert found.tolist() == [continue_alone(model, row) for row in tokens]
    assert (found[3:5] >= 0).sum() <= 1, "a text that fills its places is at its end"


def test_a_large_vocabulary_has_logits_of_the_last_token_alone():
    model, tokens = draw_model(DECODERS["grouped"], 1500), draw_prompts(1500)
    found = continue_texts(model, tf.constant(tokens), COUNT, most_probable, END).numpy()
    assert found.tolist() == [continue_alone(model, row) for row in tokens]


def test_nothing_is_written_behind_the_end():
    model, tokens = draw_model(DECODERS["grouped"]), draw_prompts()
    found = continue_texts(model, tf.constant(tokens), COUNT, lambda logits, _: 0 * tf.argmax(logits, -1, tf.int32), 0)
    assert (found.numpy() == -1).all()


PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.25, 0.2])


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), PROBABILITIES),
        (Sampling(1.0, top_k=2), np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
        (Sampling(1.0, top_p=0.6), np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
        (Sampling(1.0, top_p=1e-9), np.array([0, 1.0, 0, 0, 0])),
        (Sampling(0.5), PROBABILITIES**2 / (PROBABILITIES**2).sum()),
        (Sampling(1.0, top_k=99), PROBABILITIES),
        (Sampling(), np.array([0, 1.0, 0, 0, 0])),
    ],
)
def test_tokens_are_drawn_by_their_probabilities(sampling, expected):
    """Evenly spaced numbers draw each token as often as its probability says."""
    size = 100_000
    draws = tf.constant((np.arange(size) + 0.5) / size, tf.float32)
    logits = tf.constant(np.tile(np.log(PROBABILITIES), [size, 1]))
    shares = np.bincount(sampling.choose(logits, draws), minlength=5) / size
    np.testing.assert_allclose(shares, expected, atol=3e-5)
