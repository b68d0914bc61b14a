"""The ends of a transformer: from its values to the logits of an example, or of some of its tokens."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.linear_logits import LinearLogits
from accumtrain.backprop.mode import Mode
from accumtrain.models.layers import MANY_OUTPUTS, Dense, Initializer
from accumtrain.models.transformers.activations import GELU
from accumtrain.models.transformers.embed import TokenTable
from accumtrain.models.transformers.layers import LayerNorm, Linear, OwnGradient, RMSNorm


class ClassHead(tf.Module):
    """Layer norm, the class token or the mean over tokens, and a dense layer, all in the dtype of the weights.

    Args:
        channels: of the input [N, T, channels].
        class_token: the first token stands for the example. If not, it is the mean over all that
            `mode.side["mask"]` shows.
    """

    def __init__(self, init: Initializer, channels: int, classes: int, *, class_token: bool):
        super().__init__()
        self.norm, self.dense = LayerNorm(init, channels), Dense(init, channels, classes)
        self.class_token = class_token

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        if self.class_token:
            return self.dense.predict(self.norm(x[:, 0], mode), mode)
        x = self.norm(x, mode)
        if "mask" not in mode.side:
            return self.dense.predict(tf.reduce_mean(x, axis=1), mode)
        shown = tf.cast(mode.side["mask"], x.dtype)[..., tf.newaxis]
        tokens = tf.maximum(tf.reduce_sum(shown, axis=1), 1.0)  # an example may be all padding
        return self.dense.predict(tf.reduce_sum(x * shown, axis=1) / tokens, mode)


class EachTokenHead(tf.Module):
    """The logits of a class for each token, [N, T, classes]: layer norm and a dense layer, in the dtype of the weights.

    Args:
        channels: of the input [N, first + T, channels].
        first: number of tokens before those of the text, which get no class.
    """

    def __init__(self, init: Initializer, channels: int, classes: int, *, first: int):
        super().__init__()
        self.norm, self.dense, self.first = LayerNorm(init, channels), Dense(init, channels, classes), first

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.dense(self.norm(x[:, self.first :], mode))


class TokenHead(tf.Module):
    """The logits of the tokens at some positions: layer norm, linear, activation, layer norm, table of tokens.

    A logit is the product with the vector of a token, plus a bias of that token, as in BERT (Devlin et al. 2018). The
    positions are `mode.side["positions"]`, int32 [N, P]. The logits of a position below 0 mean nothing.

    Args:
        norm: of the input [N, T, channels]; None if the blocks end with one.
        activation: behind the linear layer.
        compute_dtype: of the product with the table. Logits [N, P, vocabulary] have the dtype of the weights.

    Attributes:
        defers_logits: it may return a `LinearLogits`.
    """

    def __init__(
        self,
        init: Initializer,
        norm: LayerNorm | None,
        linear: Linear,
        activation: OwnGradient,
        last_norm: LayerNorm,
        table: TokenTable,
        compute_dtype: tf.DType,
    ):
        super().__init__()
        self.norm, self.linear, self.activation, self.last_norm = norm, linear, activation, last_norm
        self.table, self.compute_dtype = table, compute_dtype
        self.bias = init.constant(0.0, table.embedding.shape[0], "bias")
        self.defers_logits = has_many_tokens(table.embedding)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor | LinearLogits:
        x = tf.gather(x, tf.maximum(mode.side["positions"], 0), batch_dims=1)  # [N, P, channels]
        x = x if self.norm is None else self.norm(x, mode)
        x = self.last_norm(self.activation(self.linear(x, mode), mode), mode)
        return predict_tokens(x, self.table.embedding, self.bias, self.compute_dtype, mode)


def build_token_head(
    init: Initializer, channels: int, width: int, table: TokenTable, compute_dtype: tf.DType
) -> TokenHead:
    """Return the head of an encoder whose blocks do not end with a layer norm, of `channels` channels."""
    norm, linear = LayerNorm(init, channels), Linear(init, channels, width)
    return TokenHead(init, norm, linear, GELU(), LayerNorm(init, width), table, compute_dtype)


class LastTokenHead(tf.Module):
    """The logits of a class [N, classes] from the last token that `mode.side["mask"]` shows, behind a norm.

    Args:
        norm: of the input [N, T, channels].
    """

    def __init__(self, norm: LayerNorm | RMSNorm, dense: Dense):
        super().__init__()
        self.norm, self.dense = norm, dense

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        shown = mode.side["mask"]
        last = tf.reduce_max(tf.where(shown, tf.range(tf.shape(shown)[1]), 0), axis=1)
        return self.dense.predict(self.norm(tf.gather(x, last, batch_dims=1), mode), mode)


class NextTokenHead(tf.Module):
    """The logits of the token behind each token: norm, a linear layer if there is one, products with vectors of tokens.

    Args:
        norm: of the input [N, T, channels].
        linear: from the two streams of a reversible model to the channels of the vectors; None for one stream.
        vectors: [vocabulary, C], which may be those of the embedding.
        compute_dtype: of the products. Logits [N, T, vocabulary] have the dtype of the weights.

    Attributes:
        defers_logits: it may return a `LinearLogits`.
    """

    def __init__(self, norm: LayerNorm | RMSNorm, linear: Linear | None, vectors: tf.Variable, compute_dtype: tf.DType):
        super().__init__()
        self.norm, self.linear, self.vectors, self.compute_dtype = norm, linear, vectors, compute_dtype
        self.defers_logits = has_many_tokens(vectors)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor | LinearLogits:
        x = self.norm(x, mode)
        x = x if self.linear is None else self.linear(x, mode)
        return predict_tokens(tf.cast(x, self.vectors.dtype), self.vectors, None, self.compute_dtype, mode)


def has_many_tokens(vectors: tf.Variable) -> bool:
    """Return whether the logits of vectors [V, C] may be large."""
    return int(vectors.shape[0]) >= MANY_OUTPUTS


def predict_tokens(
    x: tf.Tensor, vectors: tf.Variable, bias: tf.Variable | None, compute_dtype: tf.DType, mode: Mode
) -> tf.Tensor | LinearLogits:
    """Return the logits x @ vectors^T + bias, [N, T, V], or `LinearLogits` if they are large and the mode says so.

    Args:
        x: [N, T, C] in the dtype of the weights.
        vectors: [V, C].
    """
    trains = mode.trains(vectors) or (bias is not None and mode.trains(bias))
    kernel, added = tf.convert_to_tensor(vectors), None if bias is None else tf.convert_to_tensor(bias)
    deferred = LinearLogits(x, kernel, added, compute_dtype, of_table=True, trains_kernel=trains)
    return deferred.or_logits() if has_many_tokens(vectors) and mode.defers_logits else deferred.logits
