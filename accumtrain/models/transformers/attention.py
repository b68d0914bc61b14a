"""Multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762) between its two linear layers.

The scores of all heads are its largest tensor. They are computed for some queries at a time where there are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tensorflow as tf

from accumtrain.backprop.kernels import product
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.tracing import after
from accumtrain.models.transformers.dropout import Dropout, places_of_shares
from accumtrain.models.transformers.layers import OwnGradient, apart, axis_size

QUERIES = 256  # at a time: with heads of 64 channels their scores take no more memory than an MLP's hidden values
HIDDEN = -1e9  # added to the scores of keys that are padding


class Attention(OwnGradient):
    """Self-attention from [N, T, 3 C], the queries, keys and values of all heads, to [N, T, C].

    No token attends to one that `mode.side["mask"]`, bool [N, T], hides, if there is a mask. Softmax is computed in
    float32 or float64.

    Args:
        heads: each has C / heads channels.
        dropout: drops out shares of keys behind the softmax; None drops none.
    """

    def __init__(self, heads: int, dropout: Dropout | None = None):
        super().__init__()
        self.heads, self.dropout = heads, dropout

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        """Return y and its pullback. In a replay that has several parts of queries it computes each once more."""
        queries, keys, values = self._split(x)
        hidden = _hidden_scores(mode)
        drop_out = self._drop_out(mode)
        shares, outputs = [], []
        for rows, some in _parts(queries):
            shares.append(_attend(some, keys, hidden))
            outputs.append(product(drop_out(rows, shares[-1])[0], values))
        again = mode.replaying and len(shares) > 1
        y = self._from_heads(tf.concat(outputs, axis=2))

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            # the mean of the gradients of a query's shares, weighted by these
            means = tf.reduce_sum(self._to_heads(_widen(d_y) * _widen(y)), axis=-1, keepdims=True)
            d_outputs = self._to_heads(d_y)
            d_queries: list[tf.Tensor] = []
            d_keys = d_values = None
            for (rows, some), share in zip(_parts(queries), shares, strict=True):
                d_some = d_outputs[:, :, rows]
                if again:
                    some = after([d_some, d_keys, d_values], some)
                    share = _attend(some, keys, hidden)
                used, d_share = drop_out(rows, share, product(d_some, values, transpose_b=True))
                d_scores = _score_gradient(share, d_share, means[:, :, rows])
                d_queries.append(product(d_scores, keys))
                d_keys = _add(d_keys, product(d_scores, some, transpose_a=True))
                d_values = _add(d_values, product(used, d_some, transpose_a=True))
            return self._merge(tf.concat(d_queries, axis=2) * self._scale(x), d_keys, d_values), []

        return y, backward

    def _drop_out(self, mode: Mode) -> Callable[..., list[tf.Tensor]]:
        """Return the function from some queries, and tensors like their shares, to these with shares dropped out."""
        dropout = self.dropout
        if dropout is None or not dropout.acts(mode):
            return lambda _, *shares: [*shares]
        seeds = dropout.seeds(mode)

        def drop_out(rows: slice, *shares: tf.Tensor) -> list[tf.Tensor]:
            queries, keys = axis_size(shares[-1], 2), axis_size(shares[-1], 3)
            places = places_of_shares(self.heads, rows.start or 0, queries, keys)
            kept = dropout.keep(shares[-1], places, seeds)
            return [dropout.drop(share, kept) for share in shares]

        return drop_out

    def _scale(self, x: tf.Tensor) -> tf.Tensor:
        return tf.constant((x.shape[-1] // 3 // self.heads) ** -0.5, x.dtype)

    def _split(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return scaled queries, keys and values, each [N, heads, T, C / heads]."""
        tokens, channels = axis_size(x, 1), x.shape[-1] // 3
        split = tf.reshape(x, [-1, tokens, 3, self.heads, channels // self.heads])
        queries, keys, values = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))
        return queries * self._scale(x), keys, values

    def _to_heads(self, y: tf.Tensor) -> tf.Tensor:
        """Return y [N, T, C] as [N, heads, T, C / heads]."""
        split = tf.reshape(y, [-1, axis_size(y, 1), self.heads, y.shape[-1] // self.heads])
        return tf.transpose(split, [0, 2, 1, 3])

    def _from_heads(self, y: tf.Tensor) -> tf.Tensor:
        """Undo `_to_heads`."""
        return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, axis_size(y, 2), self.heads * y.shape[-1]])

    def _merge(self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return the three, [N, heads, T, C / heads], as [N, T, 3 C]."""
        merged = tf.transpose(tf.stack([queries, keys, values]), [1, 3, 0, 2, 4])
        return tf.reshape(merged, [-1, axis_size(keys, 2), 3 * self.heads * keys.shape[-1]])


def _parts(queries: tf.Tensor) -> Iterator[tuple[slice, tf.Tensor]]:
    """Yield the queries [N, heads, T, C] in parts of QUERIES, each with its index among them."""
    tokens = queries.shape[2] or QUERIES  # an open number of tokens is one part
    for first in range(0, tokens, QUERIES):
        rows = slice(first, first + QUERIES) if tokens > QUERIES else slice(None)
        yield rows, queries[:, :, rows]


def _attend(queries: tf.Tensor, keys: tf.Tensor, hidden: tf.Tensor | None) -> tf.Tensor:
    """Return the weight of each key in the output of each query, [N, heads, queries, keys]."""
    scores = apart(product(queries, keys, transpose_b=True))
    wide = _widen(scores)
    if hidden is not None:
        wide = wide + tf.cast(hidden, wide.dtype)
    return tf.cast(tf.nn.softmax(wide), scores.dtype)


def _score_gradient(share: tf.Tensor, d_share: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    """Return the gradient of the scores, whose softmax is `share`."""
    return tf.cast(_widen(share) * (_widen(d_share) - mean), share.dtype)


def _widen(x: tf.Tensor) -> tf.Tensor:
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def _hidden_scores(mode: Mode) -> tf.Tensor | None:
    """Return the values to add to the scores of each key, float32 [N, 1, 1, T]; None if none is hidden."""
    if "mask" not in mode.side:
        return None
    return tf.where(mode.side["mask"], 0.0, HIDDEN)[:, tf.newaxis, tf.newaxis, :]


def _add(total: tf.Tensor | None, value: tf.Tensor) -> tf.Tensor:
    return value if total is None else total + value
