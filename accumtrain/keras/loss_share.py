"""What the loss of a micro-batch counts in the loss of the whole batch.

Keras divides the sum of a batch's losses by the number of examples, by the sum of their weights, by the number of
values that a mask leaves, or not at all. The loss of the batch is the mean of the losses of the micro-batches, each
weighted by its own divisor.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import reduce
from typing import Any

import keras
import tensorflow as tf

from accumtrain.keras.loss_calls import LossCalls, Tried, watched


class LossShare:
    """The weights of micro-batches' losses, by the reduction of the losses that a model is compiled with.

    Args:
        tried: see `watched`.

    Raises:
        ValueError: several losses have different reductions, or a loss has reduction=None.
    """

    def __init__(self, model: keras.Model, tried: Tried) -> None:
        self._model, self._tried = model, tried
        self._losses = [] if model._compile_loss is None else model._compile_loss._flat_losses
        reductions = {each.loss.reduction for each in self._losses}
        reductions = {"mean" if each == "sum_over_batch_size" else each for each in reductions} or {"mean"}
        if len(reductions) > 1:
            raise ValueError(
                f"losses of the reductions {', '.join(sorted(map(str, reductions)))} can't be joined over "
                "micro-batches: give all losses the same"
            )
        (self._reduction,) = reductions
        if self._reduction in (None, "none"):
            raise ValueError("a loss has reduction=None, and so no single number to minimise: choose one")

    def watched(self) -> AbstractContextManager[LossCalls]:
        """In this context the loss of a micro-batch is computed."""
        return watched([each.loss for each in self._losses], self._tried)

    def of(self, part: tf.Tensor, y_pred: Any, sample_weight: Any, calls: LossCalls) -> tf.Tensor:
        """The weight of a micro-batch's loss, a scalar. The weights of all micro-batches need not sum to 1.

        Args:
            part: its share of the examples.
            y_pred: the predictions, with the masks that Keras attaches to them.
            sample_weight: the weights of its examples, or None.
            calls: of the losses, in this micro-batch.

        Raises:
            ValueError: masks or weights differ between several losses, a loss is no mean over examples, or layers add
                losses of their own beside one that masks or weights divide.
        """
        if not self._losses:
            return part
        if calls.unlike_means:
            raise ValueError(
                f"the loss {calls.unlike_means[0]} of a batch is not the mean of the losses of its examples, so it "
                "can't be joined over micro-batches: return one value for each example, as Dice(axis=(1, 2, 3)) does"
            )
        of_outputs = [mask for mask in map(_mask, self._with_losses(y_pred)) if mask is not None]
        masks = [*of_outputs, *calls.masks]
        if len(of_outputs) == len(calls.masks) == 1:  # Keras joins the two
            masks = [tf.logical_and(*masks)]
        if calls.one_number and (masks or sample_weight is not None):
            raise ValueError(
                f"the loss {calls.one_number[0]} gives one number for a batch, so that weights of examples and masks "
                "do not act on it: return one value for each example"
            )
        weights = keras.tree.flatten(sample_weight) if self._reduction == "mean_with_sample_weight" else []
        divisors = [each for each in (*masks, *weights) if each is not None]
        if self._reduction == "sum" or not divisors:
            return part
        if len(self._losses) > 1 or len(divisors) > 1:
            raise ValueError(
                "several losses with masks, or with weights that divide them, can't be joined over micro-batches: "
                "fit with the micro-batch and compile(optimizer=Accumulate(optimizer, steps))"
            )
        if len(self._model.losses) > sum(each.regularizer is not None for each in self._model.trainable_variables):
            raise ValueError(
                "add_loss and activity regularizers count by examples, and masks or weights divide the compiled loss, "
                "so the two can't be joined over micro-batches: leave the one or the other out, or fit "
                "with the micro-batch and compile(optimizer=Accumulate(optimizer, steps))"
            )
        return part * tf.reduce_mean(tf.cast(divisors[0], part.dtype))

    def counted(self, loss: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """What a loss of a micro-batch adds to that of the batch: all of a sum, else its share."""
        return loss if self._reduction == "sum" else share * loss

    def _with_losses(self, y_pred: Any) -> list[tf.Tensor]:
        """The outputs that have losses."""
        if not keras.tree.is_nested(y_pred):
            return [y_pred]
        structure = self._model._compile_loss._y_pred_build_structure
        outputs = keras.tree.pack_sequence_as(structure, keras.tree.flatten(y_pred))
        return [reduce(lambda inner, key: inner[key], each.path, outputs) for each in self._losses]

    def joined(self, loss: tf.Tensor, part: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """What a micro-batch adds to the total loss of the batch.

        Losses of weights and of `add_loss` are part of `loss`, and a sum counts them once for the batch.

        Raises:
            ValueError: `add_loss` was given more than one number.
        """
        if any(len(each.shape) for each in self._model.losses):
            raise ValueError(
                "add_loss was given a loss with several values, of which Keras takes the sum: give it their mean over "
                "the examples"
            )
        if self._reduction != "sum":
            return self.counted(loss, share)
        # as Keras has added them: on replicas each takes its share
        others = [tf.cast(self._model._aggregate_additional_loss(each), loss.dtype) for each in self._model.losses]
        return loss - (1.0 - part) * tf.add_n(others) if others else loss


def _mask(tensor: tf.Tensor) -> tf.Tensor | None:
    return getattr(tensor, "_keras_mask", None)
