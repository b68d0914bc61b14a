"""The mode of the training pass of a micro-batch, with its random numbers."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from accumtrain.backprop.draws import example_draws
from accumtrain.backprop.mode import Mode


def micro_mode(seed: int, step: tf.Tensor, place: tf.Tensor, parts: int, batch: Mapping[str, tf.Tensor]) -> Mode:
    """The mode of the training pass of a micro-batch.

    Args:
        seed: of the run.
        step: updates done, int32 [].
        place: which micro-batch of the window it is, over all replicas, int32 [].
        parts: number of micro-batches in the window, over all replicas.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    of_update = fold_in(tf.constant([seed, 0]), step)
    examples = tf.nest.flatten(batch["label"])[0]
    draws = example_draws(of_update, place, parts, examples.shape[0] or tf.shape(examples)[0])
    return Mode(training=True, recording=True, seed=fold_in(of_update, place), draws=draws)
