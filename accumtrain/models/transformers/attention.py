"""Multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762) between its two linear layers.

The scores of all heads are its largest tensor. Where there are many queries they are computed for some at a time, one
part after the other, and once more in the backward pass. So memory grows with the number of tokens, not its square.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import tensorflow as tf

from accumtrain.backprop.kernels import product
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.tracing import after
from accumtrain.models.transformers.dropout import Dropout, places_of_shares
from accumtrain.models.transformers.layers import OwnGradient, apart, axis_size
from accumtrain.models.transformers.rotary import Rotary, turn

QUERIES = 256  # at a time: with heads of 64 channels their scores take no more memory than an MLP's hidden values
HIDDEN = -1e9  # added to hidden scores, whose share is then exactly 0
ALL = slice(None)

Waves = tuple[tf.Tensor, tf.Tensor]  # of Rotary.waves
Heads = tuple[tf.Tensor, tf.Tensor, tf.Tensor]  # queries [N, heads, T, C], keys and values [N, kv_heads, T, C]


class Attention(OwnGradient):
    """Self-attention from [N, T, (heads + 2 kv_heads) C], queries, keys and values of all heads, to [N, T, heads C].

    No token attends to one that `mode.side["mask"]`, bool [N, T], hides, if there is a mask, nor to one of another
    document of `mode.side["documents"]`, int32 [N, T], if rows are packed. Softmax is computed in float32 or float64.

    Args:
        heads: of queries; each has C channels.
        dropout: drops out shares of keys behind the softmax; None drops none.
        kv_heads: of keys and values, each for heads / kv_heads neighbouring heads of queries (Ainslie et al. 2023,
            arXiv:2305.13245). None: as many as `heads`.
        causal: a token attends to itself and those before it alone. It needs no mask for padding, which stands behind.
        rotary: turns queries and keys; None does not.
    """

    def __init__(
        self,
        heads: int,
        dropout: Dropout | None = None,
        *,
        kv_heads: int | None = None,
        causal: bool = False,
        rotary: Rotary | None = None,
    ):
        super().__init__()
        self.heads, self.kv_heads = heads, heads if kv_heads is None else kv_heads
        self.dropout, self.causal, self.rotary = dropout, causal, rotary

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return super().__call__(x, mode) if mode.cache is None else self._go_on(x, mode)

    def _go_on(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        """Return y for the tokens at `mode.side["places"]`, which read the cache up to their places."""
        heads, *_ = self._turned_heads(x, mode)
        queries, *new = heads
        places = mode.side["places"]
        keys, values = mode.cache.add(*new, places)
        wide = _widen(self._product(queries, keys, transpose_b=True))
        is_shown = tf.range(axis_size(keys, 2)) <= places[:, tf.newaxis, :, tf.newaxis]
        share = tf.nn.softmax(wide + tf.cast(tf.where(is_shown, 0.0, HIDDEN), wide.dtype))
        return self._from_heads(self._product(tf.cast(share, x.dtype), values))

    def _turned_heads(self, x: tf.Tensor, mode: Mode) -> tuple[Heads, tf.Tensor, Waves | None]:
        """Return scaled queries, keys and values, the scale, and by what queries and keys were turned."""
        queries, keys, values = self._split(x)
        waves = None if self.rotary is None else self.rotary.waves(queries, mode)
        if waves is not None:
            queries, keys = turn(queries, *waves), turn(keys, *waves)
        scale = tf.constant(queries.shape[-1] ** -0.5, x.dtype)
        return (queries * scale, keys, values), scale, waves

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        """Return y and its pullback. The shares of keys are kept if there is one part of queries."""
        heads, scale, waves = self._turned_heads(x, mode)
        queries, *_ = heads
        drop_out = self._drop_out(mode)
        parts = _parts(queries)
        kept, outputs = list[tf.Tensor | None](), list[tf.Tensor]()
        for rows in parts:
            some, seen, seen_values = self._part(rows, heads, outputs[-1:])
            share = self._attend(rows, some, seen, mode)
            outputs.append(self._product(drop_out(rows, share)[0], seen_values))
            kept.append(share if len(parts) == 1 else None)
        y = self._from_heads(tf.concat(outputs, axis=2))

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            # the mean of the gradients of a query's shares, weighted by these
            means = tf.reduce_sum(self._to_heads(_widen(d_y) * _widen(y)), axis=-1, keepdims=True)
            d_outputs = self._to_heads(d_y)
            d_queries: list[tf.Tensor] = []
            d_keys = d_values = None
            for rows, share in zip(parts, kept, strict=True):
                d_some = d_outputs[:, :, rows]
                some, seen, seen_values = self._part(rows, heads, [d_some, d_keys, d_values])
                if share is None:
                    share = self._attend(rows, some, seen, mode)
                used, d_share = drop_out(rows, share, self._product(d_some, seen_values, transpose_b=True))
                d_scores = _score_gradient(share, d_share, means[:, :, rows])
                d_queries.append(self._product(d_scores, seen))
                d_keys = _add(d_keys, self._sum_over_queries(d_scores, some))
                d_values = _add(d_values, self._sum_over_queries(used, d_some))
            d_all = tf.concat(d_queries, axis=2) * scale
            if waves is not None:
                back = waves[0], -waves[1]
                d_all, d_keys = turn(d_all, *back), turn(d_keys, *back)
            return self._merge(d_all, d_keys, d_values), []

        return y, backward

    def _part(self, rows: slice, heads: Heads, operations: Sequence[tf.Tensor | None]) -> Heads:
        """Return some queries and the keys and values that they may read; of several parts when `operations` are done.

        Without the order all parts would be in memory at once.
        """
        if rows == ALL:
            return heads
        queries, keys, values = after(operations, heads)
        seen = slice(rows.stop) if self.causal else ALL
        return queries[:, :, rows], keys[:, :, seen], values[:, :, seen]

    def _attend(self, rows: slice, queries: tf.Tensor, keys: tf.Tensor, mode: Mode) -> tf.Tensor:
        """Return the weight of each key in the output of each query, [N, heads, queries, keys]."""
        scores = apart(self._product(queries, keys, transpose_b=True))
        wide = _widen(scores)
        hidden = self._hidden_scores(rows, scores, mode)
        if hidden is not None:
            wide = wide + tf.cast(hidden, wide.dtype)
        return tf.cast(tf.nn.softmax(wide), scores.dtype)

    def _hidden_scores(self, rows: slice, scores: tf.Tensor, mode: Mode) -> tf.Tensor | None:
        """Return what is added to scores [N, heads, queries, keys], float32 [..., keys]; None if none is hidden.

        Integers are compared as floats, as a GPU would compare them on its host.
        """
        shown = list[tf.Tensor]()
        with tf.control_dependencies([scores]):  # or those of all parts would be in memory from the start
            if self.causal:
                places = tf.range(axis_size(scores, 3), dtype=tf.float32)
                shown.append(places <= places[rows, tf.newaxis])
            elif "mask" in mode.side:
                shown.append(mode.side["mask"][:, tf.newaxis, tf.newaxis, :])
            if "documents" in mode.side:
                documents = tf.cast(mode.side["documents"], tf.float32)[:, : axis_size(scores, 3)]
                shown.append(documents[:, tf.newaxis, tf.newaxis, :] == documents[:, tf.newaxis, rows, tf.newaxis])
            return tf.where(reduce(tf.logical_and, shown), 0.0, HIDDEN) if shown else None

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

    def _product(self, x: tf.Tensor, y: tf.Tensor, *, transpose_b: bool = False) -> tf.Tensor:
        """Return the product of x [N, heads, queries, a] and y [N, kv_heads, a, b], [N, heads, queries, b]."""
        rows = product(self._grouped(x), y, transpose_b=transpose_b)
        return rows if self._groups == 1 else tf.reshape(rows, [-1, self.heads, axis_size(x, 2), axis_size(rows, 3)])

    def _sum_over_queries(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Return the product of x [N, heads, queries, a] and y [N, heads, queries, b], [N, kv_heads, a, b]."""
        return product(self._grouped(x), self._grouped(y), transpose_a=True)

    def _grouped(self, x: tf.Tensor) -> tf.Tensor:
        """Return x [N, heads, queries, a] with the rows of heads that share keys below each other."""
        if self._groups == 1:
            return x
        return tf.reshape(x, [-1, self.kv_heads, self._groups * axis_size(x, 2), axis_size(x, 3)])

    @property
    def _groups(self) -> int:
        return self.heads // self.kv_heads

    def _split(self, x: tf.Tensor) -> Heads:
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        split = tf.reshape(x, [-1, axis_size(x, 1), sum(sizes), x.shape[-1] // sum(sizes)])
        queries, keys, values = tf.split(tf.transpose(split, [0, 2, 1, 3]), sizes, axis=1)
        return queries, keys, values

    def _merge(self, *heads: tf.Tensor) -> tf.Tensor:
        """Undo `_split`."""
        return self._from_heads(tf.concat(heads, axis=1))

    def _to_heads(self, y: tf.Tensor) -> tf.Tensor:
        """Return y [N, T, heads C] as [N, heads, T, C]."""
        split = tf.reshape(y, [-1, axis_size(y, 1), self.heads, y.shape[-1] // self.heads])
        return tf.transpose(split, [0, 2, 1, 3])

    def _from_heads(self, y: tf.Tensor) -> tf.Tensor:
        """Return y [N, heads, T, C] as [N, T, heads C]."""
        return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, axis_size(y, 2), y.shape[1] * y.shape[-1]])


def _parts(queries: tf.Tensor) -> list[slice]:
    """Return the parts of queries [N, heads, T, C]: QUERIES at a time. An open number of tokens is one part."""
    tokens = queries.shape[2]
    if tokens is None or tokens <= QUERIES:
        return [ALL]
    return [slice(first, min(first + QUERIES, tokens)) for first in range(0, tokens, QUERIES)]


def _score_gradient(share: tf.Tensor, d_share: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    """Return the gradient of the scores, whose softmax is `share`."""
    return tf.cast(_widen(share) * (_widen(d_share) - mean), share.dtype)


def _widen(x: tf.Tensor) -> tf.Tensor:
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def _add(total: tf.Tensor | None, value: tf.Tensor) -> tf.Tensor:
    """Return the sum of [N, kv_heads, keys, C], of which the total may lack the last keys."""
    if total is None:
        return value
    if total.shape[2] != value.shape[2]:
        total = tf.pad(total, [[0, 0], [0, 0], [0, value.shape[2] - total.shape[2]], [0, 0]])
    return total + value
