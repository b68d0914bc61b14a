"""What the loss of a micro-batch counts in the loss of the whole batch.

Keras divides the sum of a batch's losses by the number of examples, by the sum of their weights, by the number of
values that a mask leaves, or not at all. The loss of the batch is the mean of the losses of the micro-batches, each
weighted by its own divisor.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

MEANS = ("mean", "sum_over_batch_size")


class LossShare:
    """The weights of micro-batches' losses, by the reduction of the losses that a model is compiled with.

    Raises:
        ValueError: several losses have different divisors.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._losses = [] if model._compile_loss is None else model._compile_loss._flat_losses
        reductions = {getattr(each.loss, "reduction", "mean") for each in self._losses}
        reductions = {"mean" if each == "sum_over_batch_size" else each for each in reductions} or {"mean"}
        if len(reductions) > 1:
            raise ValueError(
                f"losses of the reductions {', '.join(sorted(map(str, reductions)))} can't be joined over "
                "micro-batches: give all losses the same"
            )
        (self._reduction,) = reductions

    def of(self, part: tf.Tensor, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """The weight of a micro-batch's loss, a scalar. The weights of all micro-batches need not sum to 1.

        Args:
            part: its share of the examples.
            y_pred: the predictions, with the masks that Keras attaches to them.
            sample_weight: the weights of its examples, or None.

        Raises:
            ValueError: masks or weights differ between several losses.
        """
        masks = [mask for mask in map(_mask, keras.tree.flatten(y_pred)) if mask is not None]
        weights = keras.tree.flatten(sample_weight) if self._reduction == "mean_with_sample_weight" else []
        divisors = [each for each in (*masks, *weights) if each is not None]
        if self._reduction == "sum" or not divisors:
            return part
        if len(self._losses) > 1 or len(divisors) > 1:
            raise ValueError(
                "several losses with masks, or with weights that divide them, can't be joined over micro-batches: "
                "fit with the micro-batch and compile(optimizer=Accumulate(optimizer, steps))"
            )
        return part * tf.reduce_mean(tf.cast(divisors[0], part.dtype))

    def joined(self, loss: tf.Tensor, part: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """What a micro-batch adds to the loss of the batch: all of a sum, else its share.

        Losses of weights and of `add_loss` are part of `loss`, and a sum counts them once for the batch.
        """
        if self._reduction != "sum":
            return share * loss
        others = [tf.reduce_sum(tf.cast(each, loss.dtype)) for each in self._model.losses]
        return loss - (1.0 - part) * tf.add_n(others) if others else loss


def _mask(tensor: tf.Tensor) -> tf.Tensor | None:
    return getattr(tensor, "_keras_mask", None)
