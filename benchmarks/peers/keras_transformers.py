"""accumtrain's transformers in Keras, layer for layer: of Keras's own layers, and decoders as KerasHub has Llama."""

from __future__ import annotations

import keras
from keras import layers, ops
from sizes import EPSILON, GATED_RATIO, MLP_RATIO, PATCH, Size
from texts import Texts


def build_vit(size: Size, image_size: int, classes: int) -> keras.Model:
    image = keras.Input((image_size, image_size, 3))
    patches = layers.Conv2D(size.width, PATCH, PATCH)(image)
    tokens = (image_size // PATCH) ** 2
    x = layers.Reshape((tokens, size.width))(patches)
    x = Positions(tokens, class_token=True)(x)
    for _ in range(size.depth):
        x = block(x, size, None)
    return keras.Model(image, layers.Dense(classes, dtype="float32")(norm(x[:, 0], "float32")))


def build_encoder(size: Size, texts: Texts) -> keras.Model:
    """The input is the tokens, of masked texts a dict of them and the positions."""
    tokens = keras.Input((texts.tokens,), dtype="int32", name="tokens")
    shown = ops.greater_equal(tokens, 0)
    table = layers.ReversibleEmbedding(texts.vocabulary, size.width, tie_weights=True)
    x = Positions(texts.tokens, class_token=False)(table(ops.maximum(tokens, 0)))
    for _ in range(size.depth):
        x = block(x, size, shown[:, None, :])
    if texts.task == "classify":
        mean = layers.GlobalAveragePooling1D(dtype="float32")(norm(x, "float32"), mask=shown)
        return keras.Model(tokens, layers.Dense(texts.outputs, dtype="float32")(mean))
    positions = keras.Input((texts.positions,), dtype="int32", name="positions")
    x = ops.take_along_axis(x, ops.expand_dims(ops.maximum(positions, 0), -1), axis=1)
    x = norm(layers.Dense(size.width, activation="gelu")(norm(x)))
    logits = Bias(dtype="float32")(table(x, reverse=True))
    return keras.Model({"tokens": tokens, "positions": positions}, logits)


def build_decoder(size: Size, texts: Texts) -> keras.Model:
    from keras_hub.models import LlamaBackbone  # it takes seconds

    backbone = LlamaBackbone(
        vocabulary_size=texts.vocabulary,
        num_layers=size.depth,
        num_query_heads=size.heads,
        hidden_dim=size.width,
        intermediate_dim=int(GATED_RATIO * size.width),
        num_key_value_heads=size.heads,
        tie_word_embeddings=True,
    )
    tokens = keras.Input((texts.tokens,), dtype="int32", name="tokens")
    hidden = backbone({"token_ids": tokens, "padding_mask": ops.ones_like(tokens)})
    return keras.Model(tokens, ops.cast(backbone.token_embedding(hidden, reverse=True), "float32"))


def block(x: keras.KerasTensor, size: Size, shown: keras.KerasTensor | None) -> keras.KerasTensor:
    """Attention and MLP, each added to its input; `shown` [N, 1, T] are the keys that are no padding."""
    y, attention = norm(x), layers.MultiHeadAttention(size.heads, size.width // size.heads)
    x = layers.Add()([x, attention(y, y, attention_mask=shown)])
    y = layers.Dense(MLP_RATIO * size.width, activation="gelu")(norm(x))
    return layers.Add()([x, layers.Dense(size.width)(y)])


def norm(x: keras.KerasTensor, dtype: str | None = None) -> keras.KerasTensor:
    return layers.LayerNormalization(epsilon=EPSILON, dtype=dtype)(x)


class Positions(layers.Layer):
    """Adds a trained vector for each position, and a class token before them if there is one."""

    def __init__(self, tokens: int, *, class_token: bool):
        super().__init__()
        self.tokens, self.has_class_token = tokens, class_token

    def build(self, shape: tuple[int | None, ...]) -> None:
        width = shape[-1]
        self.positions = self.add_weight((self.tokens + self.has_class_token, width), "normal", name="positions")
        if self.has_class_token:
            self.class_token = self.add_weight((1, 1, width), "normal", name="class_token")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        if self.has_class_token:
            first = ops.broadcast_to(self.class_token, (ops.shape(x)[0], 1, x.shape[-1]))
            x = ops.concatenate([ops.cast(first, x.dtype), x], axis=1)
        return x + ops.cast(self.positions, x.dtype)


class Bias(layers.Layer):
    """Adds a trained number to each logit."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.bias = self.add_weight((shape[-1],), "zeros", name="bias")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x + self.bias
