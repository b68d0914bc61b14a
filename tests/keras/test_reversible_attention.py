"""Reversible units of attention on padded text: the padding changes nothing, and the bits are those of stored ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from accumtrain.keras import ReversibleSequence, accumulate
from tests.keras.gradients import WAYS, assert_same_bits
from tests.keras.test_fit import distance

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    pytest.mark.filterwarnings("ignore:.*was passed an input with a mask"),  # of models, by Keras
]
WORDS, CHANNELS = 9, 4
SHORT = np.array([[3, 4, 5, 1], [6, 7, 8, 2]])
PADDED = np.pad(SHORT, ((0, 0), (0, 3)))


class Attention(layers.Layer):
    """Normalises first. A mask comes with the input, as Keras carries it, or as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True
        self.norm, self.attention = layers.LayerNormalization(), layers.MultiHeadAttention(2, 3)

    def build(self, shape: Any) -> None:
        self.norm.build(shape)
        self.attention.build(shape, shape)

    def call(self, x: Any, attention_mask: Any = None) -> Any:
        x = self.norm(x)
        return self.attention(x, x, attention_mask=attention_mask)


def functional_attention() -> keras.Model:
    x = keras.Input((None, CHANNELS))
    normed = layers.LayerNormalization()(x)
    return keras.Model(x, layers.MultiHeadAttention(2, 3)(normed, normed))


def mlp() -> keras.Sequential:
    return keras.Sequential([layers.LayerNormalization(), layers.Dense(8, "gelu"), layers.Dense(CHANNELS)])


def joined(sequence: Any, words: Any) -> Any:
    return sequence(layers.Embedding(WORDS, 2 * CHANNELS, mask_zero=True)(words))


def pair_with_one_mask(sequence: Any, words: Any) -> Any:
    masked, plain = (layers.Embedding(WORDS, CHANNELS, mask_zero=zero)(words) for zero in (True, False))
    return layers.Concatenate()(sequence((masked, plain)))


def mask_as_argument(sequence: Any, words: Any) -> Any:
    return sequence(layers.Embedding(WORDS, 2 * CHANNELS)(words), mask=ops.not_equal(words, 0))


def attention_mask_as_argument(sequence: Any, words: Any) -> Any:
    return sequence(layers.Embedding(WORDS, 2 * CHANNELS)(words), attention_mask=ops.not_equal(words, 0)[:, None])


def without_a_mask(sequence: Any, words: Any) -> Any:
    return sequence(layers.Embedding(WORDS, 2 * CHANNELS)(words))


def encoder(masked: Any, memory: str = "reverse", attention: Any = Attention) -> keras.Model:
    keras.utils.set_random_seed(1)
    words = keras.Input((None,), dtype="int32")
    sequence = ReversibleSequence([(attention(), mlp()) for _ in range(2)], memory=memory)
    return keras.Model(words, layers.Dense(3)(masked(sequence, words)))


def outputs_and_gradients(model: keras.Model, words: np.ndarray, way: str) -> list[np.ndarray]:
    """Of the words that are no padding."""

    def step() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = tf.cast(model(words, training=True)[:, : SHORT.shape[1]], tf.float64)
            loss = tf.reduce_sum(outputs**2)
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        return [outputs, *map(tf.convert_to_tensor, gradients)]

    return [np.asarray(tensor) for tensor in WAYS[way](step)()]


def apart(expected: list[np.ndarray], found: list[np.ndarray]) -> float:
    """The largest difference, as a share of the largest value: the gradient of some biases is 0 but for rounding."""
    differences = (np.max(np.abs(a - b)) for a, b in zip(expected, found, strict=True))
    return float(max(differences) / max(np.max(np.abs(a)) for a in expected))


MASKED = (joined, pair_with_one_mask, mask_as_argument, attention_mask_as_argument)


def fast_and_slow(fast: Any, every: Any) -> list[Any]:
    return [case if case in fast else pytest.param(*case, marks=pytest.mark.slow) for case in every]


def assert_padding_changes_nothing(masked: Any, way: str, bound: float, attention: Any = Attention) -> None:
    short, padded, stored = (
        outputs_and_gradients(encoder(masked, memory, attention), words, way)
        for memory, words in (("reverse", SHORT), ("reverse", PADDED), ("store", PADDED))
    )
    assert apart(short, padded) < bound
    assert_same_bits(stored, padded)


@pytest.mark.parametrize(
    ("masked", "way"),
    fast_and_slow(
        [(joined, "graph"), (pair_with_one_mask, "eager")], [(m, w) for m in MASKED for w in WAYS if w != "xla"]
    ),
)
def test_padding_changes_nothing(masked: Any, way: str, float64: None) -> None:
    assert_padding_changes_nothing(masked, way, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("masked", MASKED)
@pytest.mark.parametrize(("name", "bound"), [("float32", 1e-5), ("mixed_bfloat16", 2e-2)])
def test_padding_changes_nothing_but_rounding(masked: Any, name: str, bound: float) -> None:
    keras.config.set_dtype_policy(name)
    assert_padding_changes_nothing(masked, "graph", bound)


@pytest.mark.slow
def test_a_functional_model_of_attention_gets_the_mask(float64: None) -> None:
    assert_padding_changes_nothing(joined, "graph", 1e-12, functional_attention)


def test_without_a_mask_padding_changes_the_outputs() -> None:
    model = encoder(without_a_mask)
    assert apart([model(SHORT)], [model(PADDED)[:, : SHORT.shape[1]]]) > 0.05


@pytest.mark.slow
def test_micro_batches_of_padded_text_are_one_batch(float64: None) -> None:
    """The mask reaches the loss, which is the mean over all words, though micro-batches have 18, 11 and 3 of them."""
    lengths = np.array([6, 6, 6, 5, 4, 2, 1, 1, 1])
    words = np.random.default_rng(0).integers(1, WORDS, (9, 6)) * (np.arange(6) < lengths[:, None])
    models = [encoder(pair_with_one_mask) for _ in range(2)]
    start = [variable.numpy() for variable in models[0].variables]
    accumulate(models[1], steps=3)
    for model in models:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    for _ in range(3):
        whole, split = (float(model.train_on_batch(words, words % 3)) for model in models)
        assert split == pytest.approx(whole, rel=1e-12)
    assert distance(models[1], models[0], start) < 1e-12


class RequiresMask(layers.Layer):
    def call(self, x: Any, padding_mask: Any) -> Any:
        return x * padding_mask


@pytest.mark.parametrize("place", [0, 1])
def test_a_layer_that_requires_a_mask_is_refused(place: int) -> None:
    """It would get the stream for it."""
    pair = [layers.Dense(CHANNELS), layers.Dense(CHANNELS)]
    pair[place] = RequiresMask(name="own")
    with pytest.raises(ValueError, match=f"{'fg'[place]}=own requires padding_mask in its call.*padding_mask=None"):
        ReversibleSequence([tuple(pair)])
