"""loss=positions: cross-entropy, focal loss, Dice and Tversky of the positions of examples, such as pixels.

Targets are the classes of positions, int32 [N, ...], below 0 where there is none. Outputs are logits [N, ..., C].
"""

from __future__ import annotations

import tensorflow as tf

from accumtrain.engine.losses import (
    OfSums,
    PerExample,
    PerPosition,
    accuracy,
    class_index,
    compute_by_position,
    cross_entropy,
    sum_positions,
)
from accumtrain.tasks.config import EXAMPLE, PositionsConfig

position_accuracy = PerPosition(accuracy)


def build_positions(config: PositionsConfig) -> PerExample | OfSums:
    """Return the loss of positions. Class weights, if there are any, must be a list."""
    entropy = PerPosition(_make_entropy(config))
    if not config.overlap:
        return entropy

    def of_examples(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        overlaps = _compute_overlap_loss(config, sum_overlaps(targets, logits))
        return config.overlap * overlaps + (entropy(targets, logits) if config.entropy else 0.0)

    def sums(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        (values,) = compute_by_position([entropy.function], targets, logits)
        counted = tf.cast(targets >= 0, logits.dtype)
        overlaps = tf.reshape(sum_overlaps(targets, logits), [-1, 3 * logits.shape[-1]])
        return tf.concat([tf.stack([sum_positions(values), sum_positions(counted)], 1), overlaps], 1)

    def of_sums(sums: tf.Tensor) -> tf.Tensor:
        overlaps = _compute_overlap_loss(config, tf.reshape(sums[2:], [3, -1]))
        return config.overlap * overlaps + tf.math.divide_no_nan(sums[0], sums[1])

    if config.over == EXAMPLE:
        return of_examples
    return OfSums(sums, lambda classes: 2 + 3 * classes, of_sums, config.or_say)


def _make_entropy(config: PositionsConfig) -> PerExample:
    """Return the focal loss times loss.entropy: labels [R], logits [R, C] -> [R]. Without focus, cross-entropy."""
    weights = [config.entropy * factor for factor in config.factors] or config.entropy

    def entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        values = cross_entropy(labels, logits)
        if config.focus:
            values *= (-tf.math.expm1(-values)) ** config.focus  # 1 - p
        factors = tf.constant(weights, logits.dtype)
        return values * (tf.gather(factors, class_index(labels)) if factors.shape.rank else factors)

    return entropy


def sum_overlaps(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return sums over the positions of each example that have a class, [N, 3, C].

    They are, of each class: its probability where it is the target; its probability; and its number of targets.
    """
    known = tf.cast(targets >= 0, logits.dtype)[..., tf.newaxis]
    probabilities = tf.nn.softmax(logits) * known
    is_target = tf.one_hot(targets, logits.shape[-1], dtype=logits.dtype)  # zeros where there is none
    positions = [*range(1, logits.shape.rank - 1)]
    summed = [tf.reduce_sum(each, positions) for each in (probabilities * is_target, probabilities, is_target)]
    return tf.stack(summed, axis=1)


def _compute_overlap_loss(config: PositionsConfig, sums: tf.Tensor) -> tf.Tensor:
    """Return the mean of 1 - overlap over the classes that are there, [...], of sums [..., 3, C]; 0 without any."""
    hits, said, there = tf.unstack(sums, axis=-2)
    missed = config.false_alarms * (said - hits) + config.misses * (there - hits)
    losses = tf.math.divide_no_nan(missed, hits + missed)
    present = tf.cast(there > 0, sums.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(present * losses, -1), tf.reduce_sum(present, -1))
