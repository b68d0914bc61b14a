"""What the loss of a micro-batch counts in the loss of the whole batch.

Keras divides the sum of a batch's losses by the number of examples, by the sum of their weights, by the number of
values that a mask leaves, or not at all. The loss of the batch is the mean of the losses of the micro-batches, each
weighted by its own divisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import keras
import tensorflow as tf

from accumtrain.keras.loss_calls import LossCalls, Trials, may_join_examples, watched
from accumtrain.models.keras_call import mask_of


class UntriedLossError(ValueError):
    """A loss has terms of the user's own, and none of its examples was seen yet."""


@dataclass(frozen=True)
class LossTerms:
    """What the terms of a loss are over the examples of a batch: `mean`, `sum`, or None for one that was 0 so far.

    Attributes:
        total: the loss without that of layers, or what a `compute_loss` of the model's own returns.
        of_layers: each loss that layers add, in their order.
    """

    total: str | None = "mean"
    of_layers: tuple[str | None, ...] = ()

    @property
    def settled(self) -> bool:
        """All are known."""
        return None not in (self.total, *self.of_layers)

    def check_number(self, model: keras.Model, losses: Sequence[Any]) -> None:
        """Raises ValueError if these are more or fewer losses of layers than were tried."""
        if len(losses) != len(self.of_layers):
            raise ValueError(
                f"layers of {model.name} add {len(losses)} losses, and {len(self.of_layers)} with the examples before: "
                "let them add the same in each pass"
            )


def losses_of_layers(model: keras.Model) -> list[tf.Tensor]:
    """The losses that layers have added in the pass that was made last, scalars; those of weights are left out."""
    of_weights = sum(variable.regularizer is not None for variable in model.trainable_variables)
    losses = model.losses  # those of weights come last
    return [model._aggregate_additional_loss(each) for each in losses[: len(losses) - of_weights]]


def has_own_loss(model: keras.Model) -> bool:
    """Whether code of the user's own computes the loss of a compiled and built model, beside that of layers."""
    losses = [] if model._compile_loss is None else model._compile_loss._flat_losses
    return _computes_loss(model) or any(may_join_examples(each.loss) for each in losses)


def _computes_loss(model: keras.Model) -> bool:
    return type(model).compute_loss is not keras.Model.compute_loss


class LossShare:
    """The weights of micro-batches' losses, by the reduction of the losses that a model is compiled with.

    Args:
        trials: of losses.
        terms: of the loss; None if it was not tried on examples.

    Raises:
        ValueError: several losses have different reductions, or a loss has reduction=None.
    """

    def __init__(self, model: keras.Model, trials: Trials, terms: LossTerms | None = None) -> None:
        self._model, self._trials, self._terms = model, trials, terms
        self.is_own = _computes_loss(model)
        self._is_own_sum = self.is_own and terms is not None and terms.total == "sum"
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

    def kinds(self) -> Sequence[str]:
        """What the loss may be over the examples of a batch."""
        return ("mean", "sum") if self.is_own else ("sum" if self._reduction == "sum" else "mean",)

    def watched(self) -> AbstractContextManager[LossCalls]:
        """In this context the loss of a micro-batch is computed."""
        return watched([each.loss for each in self._losses], self._trials)

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
        of_outputs = [mask for mask in map(mask_of, self._with_losses(y_pred)) if mask is not None]
        masks = [*of_outputs, *calls.masks]
        if len(of_outputs) == len(calls.masks) == 1:  # Keras joins the two
            masks = [tf.logical_and(*masks)]
        calls.check(divided=bool(masks) or sample_weight is not None)
        weights = keras.tree.flatten(sample_weight) if self._reduction == "mean_with_sample_weight" else []
        divisors = [each for each in (*masks, *weights) if each is not None]
        if self._reduction == "sum" or not divisors or self._is_own_sum:
            return part
        if len(self._losses) > 1 or len(divisors) > 1:
            raise ValueError(
                "several losses with masks, or with weights that divide them, can't be joined over micro-batches: "
                "give them the reduction 'sum', or leave all masks or losses out but one"
            )
        if losses_of_layers(self._model):
            raise ValueError(
                "add_loss and activity regularizers count by examples, and masks or weights divide the compiled loss, "
                "so the two can't be joined over micro-batches: leave the one or the other out, or give the loss the "
                "reduction 'sum'"
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

    def without_layers(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """The loss of a batch without that of layers and weights; a `compute_loss` of the model's own as it is."""
        if self.is_own:
            return self._model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        return self._model._compile_loss(y, y_pred, sample_weight) if self._losses else tf.zeros(())

    def joined(self, loss: tf.Tensor, part: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """What a micro-batch adds to the total loss of the batch.

        Losses of weights and of `add_loss` are part of `loss`, and a compiled loss that is a sum counts them once for
        the batch.

        Raises:
            UntriedLossError: there are terms that have to be tried, and were not.
            ValueError: layers add another number of losses than when they were tried.
        """
        of_layers = losses_of_layers(self._model)
        if self._terms is None:
            if of_layers or has_own_loss(self._model):
                raise UntriedLossError(
                    f"the loss of {self._model.name} has terms of your own, which have to be seen with real examples "
                    "first: train with fit or train_on_batch"
                )
            sums = []
        elif self.is_own:
            return loss if self._is_own_sum else share * loss
        else:
            self._terms.check_number(self._model, of_layers)
            sums = [each for each, kind in zip(of_layers, self._terms.of_layers, strict=True) if kind == "sum"]
        if self._reduction == "sum":
            # as Keras has added them: on replicas each takes its share
            added = [self._model._aggregate_additional_loss(each) for each in self._model.losses]
            return loss - (1.0 - part) * (_total(added, loss) - _total(sums, loss))
        return self.counted(loss, share) + (1.0 - share) * _total(sums, loss)


def _total(losses: list[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    """The sum of scalars, in the dtype of `like`."""
    return tf.add_n([tf.cast(each, like.dtype) for each in losses]) if losses else tf.zeros_like(like)
