"""Continuations of texts by a causal decoder, token by token. Keys and values of earlier tokens are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from accumtrain.backprop.linear_logits import LinearLogits
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.fields import NONE
from accumtrain.models.transformers.attention import QUERIES
from accumtrain.models.transformers.cache import KeyValueCache

# From logits [N, V] and the number of the new token, int32 [], to tokens, int32 [N].
Choose = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class Sampling:
    """The rule by which tokens are drawn.

    Attributes:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: as many of the most probable tokens may be drawn; None: all.
        top_p: the most probable tokens may be drawn up to the first with which their probabilities reach this sum
            (Holtzman et al. 2019, arXiv:1904.09751).
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def choose(self, logits: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Return a token of each row of logits [N, V], int32 [N], by a number from 0 on and below 1, float32 [N]."""
        if self.temperature == 0.0:
            return choose_best(logits)
        size = int(logits.shape[-1])
        falling, tokens = tf.math.top_k(tf.cast(logits, tf.float32) / self.temperature, min(self.top_k or size, size))
        shares = tf.nn.softmax(falling)
        shares = tf.where(tf.cumsum(shares, axis=1, exclusive=True) < self.top_p, shares, 0.0)
        ends = tf.cumsum(shares, axis=1)
        rank = tf.reduce_sum(tf.cast(ends <= draws[:, tf.newaxis] * ends[:, -1:], tf.int32), axis=1)
        last = tf.reduce_sum(tf.cast(shares > 0.0, tf.int32), axis=1) - 1
        return tf.gather(tokens, tf.minimum(rank, last), batch_dims=1)


def choose_best(logits: tf.Tensor) -> tf.Tensor:
    """Return the most probable token of each row of logits [N, V], int32 [N]."""
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def continue_texts(model: Model, tokens: tf.Tensor, count: int, choose: Choose, end: int | None) -> tf.Tensor:
    """Return the tokens that a model writes behind texts, int32 [N, count]; NONE behind the last one.

    A text is at its end before the token `end`, or when it fills all T places. Neither padding nor the other texts
    change it, but for rounding.

    Args:
        model: a causal decoder, of tokens [N, T] and their places.
        tokens: int32 [N, T], a token or more of each text, and NONE behind them.
        count: of new tokens, at least 1.
        end: the token that ends a text; None if there is none.
    """
    room = int(tokens.shape[1])
    lengths = tf.reduce_sum(tf.cast(tokens >= 0, tf.int32), axis=1)

    def write(index: tf.Tensor, logits: tf.Tensor, ended: tf.Tensor, written: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = choose(logits, index)
        ended |= lengths + index >= room
        if end is not None:
            ended |= chosen == end
        row = tf.where(ended, NONE, chosen)[tf.newaxis]
        return ended, tf.tensor_scatter_nd_update(written, [[index]], row)

    def step(index: tf.Tensor, ended: tf.Tensor, written: tf.Tensor, pairs: list[Any]) -> tuple[Any, ...]:
        cache = KeyValueCache(room, pairs)
        place = tf.minimum(lengths + index - 1, room - 1)[:, tf.newaxis]  # a text that has ended goes on, unwritten
        last = tf.maximum(written[index - 1], 0)[:, tf.newaxis]
        logits = take_logits(_compute(model, last, place, cache), tf.zeros_like(lengths))
        return index + 1, *write(index, logits, ended, written), cache.pairs

    cache = KeyValueCache(room)
    logits = _read(model, tokens, lengths, cache)
    nothing = tf.fill([count, tf.shape(tokens)[0]], NONE)
    begun = write(tf.constant(0), logits, tf.zeros_like(lengths, tf.bool), nothing)
    _, _, written, _ = tf.while_loop(
        lambda index, ended, *_: (index < count) & ~tf.reduce_all(ended),
        step,
        (tf.constant(1), *begun, cache.pairs),
        parallel_iterations=1,
    )
    return tf.transpose(written)


def _read(model: Model, tokens: tf.Tensor, lengths: tf.Tensor, cache: KeyValueCache) -> tf.Tensor:
    """Return the logits behind the last token of each text, [N, V]. The cache is filled, QUERIES tokens at a time."""
    logits = None
    for start in range(0, int(tokens.shape[1]), QUERIES):
        part = tokens[:, start : start + QUERIES]
        places = tf.broadcast_to(tf.range(start, start + part.shape[1]), tf.shape(part))
        cache.restart()
        outputs = _compute(model, part, places, cache)
        last = lengths - 1 - start
        found = take_logits(outputs, tf.clip_by_value(last, 0, part.shape[1] - 1))
        logits = found if logits is None else tf.where((last >= 0)[:, tf.newaxis], found, logits)
    return logits


def _compute(model: Model, tokens: tf.Tensor, places: tf.Tensor, cache: KeyValueCache) -> Any:
    mode = Mode(training=False, defers_logits=True)
    mode.cache = cache
    return model({"tokens": tokens, "places": places}, mode)


def take_logits(outputs: Any, index: tf.Tensor) -> tf.Tensor:
    """Return the logits at one token of each text, [N, V].

    Args:
        outputs: logits [N, T, V], or their `LinearLogits`, of which no others are computed then.
        index: int32 [N], the place of the token.
    """
    if isinstance(outputs, LinearLogits):
        return outputs.map_hidden(lambda hidden: tf.gather(hidden, index, batch_dims=1)).logits
    return tf.gather(outputs, index, batch_dims=1)
