"""Transformers of KerasHub with random weights: accumulated, recomputed, reversed, and in accumtrain.fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.errors import ConfigError
from accumtrain.keras import accumulate, recompute
from tests.keras.cases import EXAMPLES, pair, run
from tests.keras.gradients import AS_WRITTEN, assert_same_gradients
from tests.keras.test_fit import compare_updates, distance

keras_hub = pytest.importorskip("keras_hub")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_folder", "seeded")]

LENGTH, WORDS, WIDTH = 6, 15, 8
ENCODER = {"num_layers": 2, "num_heads": 2, "hidden_dim": WIDTH, "dropout": 0.0}
DRAW = np.random.default_rng(0)
LENGTHS = np.sort(DRAW.integers(1, LENGTH + 1, EXAMPLES))  # so that micro-batches have very different numbers of tokens
PRESENT = (np.arange(LENGTH) < LENGTHS[:, None]).astype("int32")
TOKENS = DRAW.integers(1, WORDS, (EXAMPLES, LENGTH)) * PRESENT


def bert(dropout: float = 0.0) -> keras.Model:
    """Tells the word in each place."""
    sizes = {**ENCODER, "dropout": dropout}
    backbone = keras_hub.models.BertBackbone(WORDS, intermediate_dim=16, max_sequence_length=LENGTH, **sizes)
    return keras.Model(backbone.input, keras.layers.Dense(WORDS)(backbone.output["sequence_output"]))


def gpt2(dropout: float = 0.0) -> keras.Model:
    """Tells the next word, by the embedding that it begins with."""
    sizes = {**ENCODER, "dropout": dropout}
    backbone = keras_hub.models.GPT2Backbone(WORDS, intermediate_dim=16, max_sequence_length=LENGTH, **sizes)
    return keras.Model(backbone.input, backbone.token_embedding(backbone.output, reverse=True))


def vit(dropout: float = 0.0) -> keras.Model:
    backbone = keras_hub.models.ViTBackbone(
        (8, 8, 3), 4, num_layers=2, num_heads=2, hidden_dim=WIDTH, mlp_dim=16, dropout_rate=dropout
    )
    return keras.Model(backbone.input, keras.layers.Dense(WORDS)(backbone.output[:, 0]))


class Transformer(NamedTuple):
    """A model, inputs, targets, and the weight of each target."""

    build: Callable[..., keras.Model]
    inputs: Any
    targets: np.ndarray
    weights: np.ndarray


TEXT = {"token_ids": TOKENS, "padding_mask": PRESENT}
TRANSFORMERS = {
    "bert": Transformer(bert, {**TEXT, "segment_ids": np.zeros_like(TOKENS)}, TOKENS, PRESENT),
    "gpt2": Transformer(gpt2, TEXT, np.roll(TOKENS, -1, 1), np.roll(PRESENT, -1, 1) * (np.arange(LENGTH) < LENGTH - 1)),
    "vit": Transformer(
        vit, DRAW.normal(size=(EXAMPLES, 8, 8, 3)), DRAW.integers(0, WORDS, EXAMPLES), DRAW.uniform(size=EXAMPLES)
    ),
}
all_transformers = pytest.mark.parametrize("name", TRANSFORMERS)
TOKEN_MEAN, MEAN = "mean_with_sample_weight", "sum_over_batch_size"


def models_of(name: str, reduction: str, **options: Any) -> tuple[keras.Model, keras.Model]:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    return pair(TRANSFORMERS[name].build, loss=loss, jit_compile=False, **options)


def data_of(name: str) -> tuple[Any, np.ndarray, np.ndarray]:
    _, inputs, targets, weights = TRANSFORMERS[name]
    return inputs, targets, weights.astype(keras.config.floatx())


@all_transformers
@pytest.mark.parametrize("reduction", [TOKEN_MEAN, MEAN])
def test_micro_batches_are_one_batch(name: str, reduction: str, float64: None) -> None:
    """The token mean is over all tokens of the batch."""
    whole, split = models_of(name, reduction, optimizer=partial(keras.optimizers.SGD, 0.1, momentum=0.9))
    start = [variable.numpy() for variable in whole.variables]
    accumulate(split, steps=4)
    for _ in range(3):
        losses = [float(model.train_on_batch(*data_of(name))) for model in (whole, split)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    assert distance(split, whole, start) < 1e-12


@all_transformers
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_recomputation_gives_the_bits_of_stored_activations(name: str, policy: str) -> None:
    """Of a whole network that drops activations."""
    tf.config.optimizer.set_experimental_options(AS_WRITTEN)
    keras.config.set_dtype_policy(policy)
    transformer = TRANSFORMERS[name]

    def make(wrap: Any) -> Any:
        keras.utils.set_random_seed(1)
        return wrap(transformer.build(dropout=0.3))

    inputs = tf.nest.map_structure(tf.constant, transformer.inputs)
    assert_same_gradients(make, (lambda layer: layer, recompute), inputs, "graph")


@all_transformers
def test_fit_makes_the_updates_of_one_batch(name: str, float64: None) -> None:
    """With weights of tokens, which do not divide the loss."""
    models = models_of(name, MEAN, optimizer=partial(keras.optimizers.Adam, 1e-2))
    compare_updates(models, data_of(name), 1e-12)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_fit_has_the_token_mean_with_the_whole_batch(name: str, float64: None) -> None:
    models = models_of(name, TOKEN_MEAN, optimizer=partial(keras.optimizers.Adam, 1e-2))
    with pytest.raises(ConfigError, match='say loss="batch"'):
        run(models[0], data_of(name))
    compare_updates(models, data_of(name), 1e-12, loss="batch")


@all_transformers
def test_fit_by_jax(name: str, float64: None) -> None:
    pytest.importorskip("jax")
    models = models_of(name, MEAN, optimizer=partial(keras.optimizers.Adam, 1e-2))
    compare_updates(models, data_of(name), 1e-12, settings={"device.runtime": "jax"})
