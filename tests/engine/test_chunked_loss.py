"""A window whose losses and metrics are computed for some rows of logits at a time."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import linear_logits
from accumtrain.engine.window import Window
from accumtrain.fields import MASKED, NEXT
from accumtrain.models.build import build_model
from accumtrain.models.config import MlpConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.models.transformers.config import DecoderConfig, EncoderConfig, RevDecoderConfig, RevEncoderConfig
from accumtrain.optim.config import OptimConfig
from accumtrain.tasks.texts.tokens import token_accuracy, token_cross_entropy
from accumtrain.train.build import build_optimizer

VOCABULARY, LENGTH, MASKS, EXAMPLES = 1500, 8, 5, 12
OF_TOKENS = {"loss": token_cross_entropy, "metrics": {"token_accuracy": token_accuracy}}


def draw_texts():
    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCABULARY, [EXAMPLES, LENGTH], np.int32)
    positions = np.sort(random.permuted(np.tile(np.arange(LENGTH), [EXAMPLES, 1]), axis=1)[:, :MASKS], axis=1)
    ids = random.integers(0, VOCABULARY, [EXAMPLES, MASKS], np.int32)
    count = random.integers(0, MASKS + 1, EXAMPLES)
    ids[np.arange(MASKS) >= count[:, np.newaxis]] = -1
    inputs = {"tokens": tokens, "positions": positions.astype(np.int32)}
    batch = {"inputs": inputs, "targets": ids, "weight": count.astype(np.float32)}
    return tf.nest.map_structure(tf.constant, batch)


def run_window(config, spec, batch, *, freeze=(), **keys):
    """Return the gradients and the results of an update, both with a batch in one micro-step."""
    model = build_model(config, spec())
    model.freeze(freeze)
    window = Window(model, build_optimizer(OptimConfig(kind="sgd", lr=0.1)), **keys)
    tf.function(window.accumulate, autograph=False)(batch)
    gradients = [buffer.numpy() for buffer in window.gradients]
    return gradients, {name: np.asarray(value) for name, value in tf.function(window.commit, autograph=False)().items()}


@pytest.fixture
def count_chunks(monkeypatch):
    """Let chunks have 7 rows, and return the list of the numbers of chunks that are computed."""
    counted, divide = [], linear_logits.LinearLogits._divide

    def counting(self, tensors):
        divided, chunks = divide(self, tensors)
        counted.append(chunks)
        return divided, chunks

    def start():
        monkeypatch.setattr(linear_logits, "LEAST_BYTES", 7 * VOCABULARY * 8)
        monkeypatch.setattr(linear_logits.LinearLogits, "_divide", counting)
        return counted

    return start


def assert_same(chunked, whole, bound=1e-12):
    for found, expected in zip(chunked[0], whole[0], strict=True):
        assert np.abs(found - expected).max() <= bound * np.abs(expected).max()
    for name, expected in whole[1].items():
        np.testing.assert_allclose(chunked[1][name], expected, rtol=bound)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("config", [EncoderConfig(width=8), RevEncoderConfig(width=8)], ids=["plain", "reversible"])
def test_masked_tokens(config, frozen, count_chunks):
    spec = partial(
        ModelSpec, (LENGTH,), VOCABULARY, "float64", 0, inputs=("tokens",), vocabulary=VOCABULARY, tells=MASKED
    )
    freeze = [path for path in build_model(config, spec()).named if "segments/0" in path] if frozen else []
    whole = run_window(config, spec, draw_texts(), freeze=freeze, **OF_TOKENS)
    counted = count_chunks()
    chunked = run_window(config, spec, draw_texts(), freeze=freeze, **OF_TOKENS)
    assert counted == [8]
    assert_same(chunked, whole)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("config", [DecoderConfig(width=8), RevDecoderConfig(width=8)], ids=["plain", "reversible"])
def test_next_tokens(config, tied, count_chunks):
    spec = partial(ModelSpec, (LENGTH,), VOCABULARY, "float64", 0, inputs=("tokens",), vocabulary=VOCABULARY)
    spec, config = partial(spec, tells=NEXT), replace(config, tied=tied)
    random = np.random.default_rng(0)
    tokens, targets = (random.integers(0, VOCABULARY, [EXAMPLES, LENGTH], np.int32) for _ in range(2))
    targets[:, -1] = -1
    batch = {"inputs": tf.constant(tokens), "targets": tf.constant(targets)}
    whole = run_window(config, spec, batch, **OF_TOKENS)
    counted = count_chunks()
    chunked = run_window(config, spec, batch, **OF_TOKENS)
    assert counted == [12]
    assert_same(chunked, whole)


def test_many_classes_and_two_labels(count_chunks):
    spec = partial(ModelSpec, (4,), VOCABULARY, "float64", 0, inputs=("arrays",))
    random = np.random.default_rng(0)
    labels = {name: random.integers(0, VOCABULARY, EXAMPLES).astype(np.int32) for name in ("targets", "other_targets")}
    batch = {"inputs": random.normal(size=[EXAMPLES, 4]), "share": random.random(EXAMPLES).astype(np.float32), **labels}
    batch = {name: tf.constant(value) for name, value in batch.items()}
    whole = run_window(MlpConfig(width=8), spec, batch)
    counted = count_chunks()
    chunked = run_window(MlpConfig(width=8), spec, batch)
    assert counted == [2]
    assert_same(chunked, whole)
