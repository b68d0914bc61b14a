"""Small Keras models of the kinds that people have, with data; every job and wrapper is held against them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from tests.keras.cases import CROSS_ENTROPY

SIZE, WORDS, LENGTH, CLASSES = 64, 12, 7, 4


class SmallModel(NamedTuple):
    """`build` makes the model, `inputs` its examples, `targets` and `loss` are those of one output of 4 classes."""

    build: Callable[[], keras.Model]
    inputs: Callable[[np.random.Generator], Any]
    targets: Callable[[np.random.Generator], Any] = lambda draw: draw.integers(0, CLASSES, SIZE)
    loss: Any = CROSS_ENTROPY


def vectors(draw: np.random.Generator) -> np.ndarray:
    return draw.normal(size=(SIZE, 6)).astype("float32")


def sentences(draw: np.random.Generator) -> np.ndarray:
    """Words from 1, padded with 0 to LENGTH."""
    lengths = draw.integers(2, LENGTH + 1, (SIZE, 1))
    return np.where(np.arange(LENGTH) < lengths, draw.integers(1, WORDS, (SIZE, LENGTH)), 0)


def mlp() -> keras.Model:
    hidden = [keras.layers.Dense(16, "tanh") for _ in range(3)]
    return keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(CLASSES)])


def cnn_with_batch_norm() -> keras.Model:
    layers: list[Any] = [keras.Input((8, 8, 3))]
    for _ in range(2):
        layers += [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)])


def embedding() -> keras.Model:
    layers = [keras.layers.Embedding(WORDS, 8), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *layers])


def masked(*layers: keras.layers.Layer) -> keras.Model:
    words = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(WORDS, 8, mask_zero=True)(words)
    for layer in layers:
        x = layer(x)
    return keras.Model(words, keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(x)))


def lstm_with_masks() -> keras.Model:
    return masked(*(keras.layers.LSTM(8, return_sequences=True) for _ in range(3)))


@keras.saving.register_keras_serializable(package="tests")
class AttentionBlock(keras.layers.Layer):
    """Takes no mask, but the attention inside takes the one that Keras carries with the input."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attention = keras.layers.MultiHeadAttention(2, 4)
        self.norm = keras.layers.LayerNormalization()

    def build(self, input_shape: Any) -> None:
        self.attention.build(input_shape, input_shape)
        self.norm.build(input_shape)

    def call(self, x: Any) -> Any:
        normed = self.norm(x)
        return x + self.attention(normed, normed)


def attention() -> keras.Model:
    return masked(*(AttentionBlock() for _ in range(3)))


def two_inputs_and_outputs() -> keras.Model:
    words, numbers = keras.Input((LENGTH,), dtype="int32", name="words"), keras.Input((6,), name="numbers")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(WORDS, 8)(words))
    x = keras.layers.Dense(16, "tanh")(keras.layers.Concatenate()([x, numbers]))
    outputs = {"kind": keras.layers.Dense(CLASSES, name="kind")(x), "size": keras.layers.Dense(1, name="size")(x)}
    return keras.Model({"words": words, "numbers": numbers}, outputs)


def frozen_part() -> keras.Model:
    """Fine-tuning: a head on a part that is not trained, with its batch norm."""
    base = cnn_with_batch_norm()
    base.trainable = False
    x = keras.layers.Dense(16, "tanh")(base.layers[-2].output)
    return keras.Model(base.inputs, keras.layers.Dense(CLASSES)(x))


def shared_layer() -> keras.Model:
    inputs, shared = keras.Input((6,)), keras.layers.Dense(6, "tanh")
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(shared(shared(inputs))))


def images(draw: np.random.Generator) -> np.ndarray:
    return draw.normal(size=(SIZE, 8, 8, 3)).astype("float32")


SMALL_MODELS = {
    "mlp": SmallModel(mlp, vectors),
    "cnn_with_batch_norm": SmallModel(cnn_with_batch_norm, images),
    "embedding": SmallModel(embedding, sentences),
    "lstm_with_masks": SmallModel(lstm_with_masks, sentences),
    "attention": SmallModel(attention, sentences),
    "two_inputs_and_outputs": SmallModel(
        two_inputs_and_outputs,
        lambda draw: {"words": sentences(draw), "numbers": vectors(draw)},
        lambda draw: {"kind": draw.integers(0, CLASSES, SIZE), "size": draw.normal(size=(SIZE, 1))},
        {"kind": CROSS_ENTROPY, "size": "mse"},
    ),
    "frozen_part": SmallModel(frozen_part, images),
    "shared_layer": SmallModel(shared_layer, vectors),
}
