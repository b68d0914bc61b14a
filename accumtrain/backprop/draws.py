"""Random numbers of the examples of a window that do not depend on how the window is split."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

Draws = Callable[[int], tf.Tensor]  # from the number of a draw to uniform numbers 0..1, float32 [N], one per example


def example_draws(seed: tf.Tensor, place: tf.Tensor, parts: int, batch: int | tf.Tensor) -> Draws:
    """The draws of one micro-batch of a window.

    All numbers of the window are drawn, and those of the micro-batch cut out. So example i of a window gets the same
    number however many micro-batches and replicas there are.

    Args:
        seed: of the run and update, int32 [2].
        place: which micro-batch of the window it is, over all replicas, int32 []; those beyond `parts` draw anew.
        parts: number of micro-batches in the window, over all replicas.
        batch: number of examples of the micro-batch.
    """
    examples = (place * batch + tf.range(batch)) % (parts * batch)

    def draw(number: int) -> tf.Tensor:
        fold_in = tf.random.experimental.stateless_fold_in
        of_layer = fold_in(fold_in(seed, number), place // parts)
        return tf.gather(tf.random.stateless_uniform([parts * batch], of_layer), examples)

    return draw
