"""The share of a micro-batch's loss in the loss of the whole batch.

Keras divides the sum of a batch's losses by the number of examples, or by the sum of their weights. With a mask it
divides by the number of values that are left; with `reduction="sum"` it does not divide at all. The loss of the batch
is the mean of the losses of the micro-batches, each weighted by its own divisor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from accumtrain.keras.known import Declared, Join, is_known, join_of, join_of_layer
from accumtrain.models.keras.call import mask_of, set_mask


class LayerLoss(NamedTuple):
    """A loss that a layer has added, a scalar, and how it joins."""

    value: tf.Tensor
    join: Join


def losses_of_layers(model: keras.Model, declared: Declared) -> list[LayerLoss]:
    """Return the losses that layers have added in the last pass. Those of weights are left out.

    Raises:
        ValueError: one is the user's own and nothing is declared of it, or has a value for each example and is declared
            to be a mean.
    """
    found = []
    for layer in model._flatten_layers():
        losses = layer._get_own_losses()
        join = join_of_layer(layer) if losses else None
        for loss in losses:
            found.append(
                LayerLoss(model._aggregate_additional_loss(loss), join or _declared_join(layer, loss, declared))
            )
    return found


def _declared_join(layer: keras.layers.Layer, loss: tf.Tensor, declared: Declared) -> Join:
    if declared.layer_losses is None:
        raise ValueError(
            f"the layer {layer.name} adds a loss of your own, which is made of one micro-batch, so it can't be that of "
            'the whole batch: say layer_losses="mean" if it is a mean over examples, or layer_losses="sum" if it is a '
            "sum over them, or leave it out"
        )
    join = Join(declared.layer_losses)
    if join is Join.MEAN and loss.shape.rank:
        raise ValueError(
            f"the layer {layer.name} adds a loss with a value for each example, and Keras adds these up: say "
            'layer_losses="sum", or add their mean'
        )
    return join


def computes_loss(model: keras.Model) -> bool:
    """Return whether a model has a `compute_loss` of its own."""
    return getattr(model.compute_loss, "__func__", None) is not keras.Model.compute_loss


def compiled_losses(model: keras.Model) -> Sequence[Any]:
    """Return the losses that a built model is compiled with, one for each output that has any."""
    return [] if model._compile_loss is None else model._compile_loss._flat_losses


def outputs_with_losses(model: keras.Model, y_pred: Any) -> list[Any]:
    """Return the outputs of a model, or their specs, that each compiled loss takes."""
    if not keras.tree.is_nested(y_pred):
        return [y_pred for _ in compiled_losses(model)]
    outputs = keras.tree.pack_sequence_as(model._compile_loss._y_pred_build_structure, keras.tree.flatten(y_pred))
    return [reduce(lambda inner, key: inner[key], compiled.path, outputs) for compiled in compiled_losses(model)]


def join_of_model(model: keras.Model, y_pred: Any, declared: Declared) -> Join:
    """Return how the loss of a compiled and built model joins. It is MEAN also for several that are means and sums.

    Args:
        y_pred: specs of its outputs.
    """
    if computes_loss(model) or declared.loss == Join.BATCH.value:
        return declared.join
    pairs = zip(compiled_losses(model), outputs_with_losses(model, y_pred), strict=True)
    joins = [join_of(compiled.loss, output, declared) for compiled, output in pairs]
    return Join.BATCH if Join.BATCH in joins else Join.MEAN


class BatchLoss(NamedTuple):
    """A loss of the whole batch, before its micro-batches are added; zero for one that is made of theirs.

    Attributes:
        loss: its value, a scalar; on several replicas the share of one.
        losses: the value of each of several losses, as Keras shows them.
        at_outputs: the gradient at each output, [N, ...], or None; empty without such a loss.
        at_weights: the gradient at each weight that the loss itself reads, or None; on several replicas a share.
        assigned: variables that the loss has changed, with their new values.
    """

    loss: tf.Tensor | float
    losses: list[tf.Tensor]
    at_outputs: list[tf.Tensor | None]
    at_weights: list[tf.Tensor | None]
    assigned: Sequence[tuple[keras.Variable, tf.Tensor]] = ()


class LossShare:
    """The weights of micro-batches' losses, by the reduction of the losses that a model is compiled with.

    Args:
        y_pred: specs of the outputs of the model.

    Raises:
        ValueError: several losses have different reductions, or a loss has reduction=None.
    """

    def __init__(self, model: keras.Model, y_pred: Any, declared: Declared) -> None:
        self._model, self._declared = model, declared
        self._losses = [compiled.loss for compiled in compiled_losses(model)]
        check_reductions(self._losses)
        self._is_own = computes_loss(model)
        pairs = zip(self._losses, outputs_with_losses(model, y_pred), strict=True)
        self._unknown = [loss for loss, output in pairs if not (self._is_own or is_known(loss, output))]
        reductions = {declared.loss} if self._is_own else {self._kind(loss) for loss in self._losses} or {"mean"}
        if len(reductions) > 1:
            raise ValueError(
                f"losses of the reductions {', '.join(sorted(map(str, reductions)))} can't be joined over "
                'micro-batches: give all losses the same, or say loss="batch"'
            )
        self._reduction: str | None = reductions.pop()

    def _kind(self, loss: keras.losses.Loss) -> str:
        """Return the reduction by which a loss joins."""
        if self._is_unknown(loss) and Join.SUM.value in (self._declared.loss, loss.reduction):
            return str(self._declared.loss)
        return "mean" if loss.reduction == "sum_over_batch_size" else loss.reduction

    def _is_unknown(self, loss: keras.losses.Loss) -> bool:
        return any(loss is unknown for unknown in self._unknown)

    def of_micro_batch(
        self, part: tf.Tensor, x: Any, y: Any, y_pred: Any, sample_weight: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return what a micro-batch adds to the total loss of the batch, and the weight of its loss, scalars.

        Args:
            part: its share of the examples.
            y_pred: the predictions, with the masks that Keras attaches to them.

        Raises:
            ValueError: see `_weight`, `_share_of_replica` and `losses_of_layers`.
        """
        with self.record_calls() as calls:
            loss = self._model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        share = self._weight(part, y_pred, sample_weight, calls)
        return self._joined(tf.cast(loss, part.dtype), part, share), share

    def record_calls(self) -> AbstractContextManager[LossCalls]:
        """Record calls of the losses. See `record_loss_calls`, and `_share_of_replica` for what is refused."""
        return record_loss_calls(self._losses, self._share_of_replica)

    def _share_of_replica(self, loss: keras.losses.Loss, values: tf.Tensor) -> float:
        """Return the factor of a loss's values on a replica. Keras divides means by the replicas, but for one number.

        Raises:
            ValueError: a value for each example does not join as it is declared.
        """
        one_number = not values.shape.rank
        if self._is_unknown(loss) and not one_number:
            found = "sum" if loss.reduction == "sum" else "mean"
            if found != self._declared.loss:
                raise ValueError(
                    f"the loss {loss.name} has a value for each example and reduction={loss.reduction!r}, so it is "
                    f'their {found}: say loss="{found}"'
                )
        divided = not one_number or self._reduction == "sum" or self._is_own
        return 1.0 if divided else 1.0 / count_replicas()

    def _weight(self, part: tf.Tensor, y_pred: Any, sample_weight: Any, calls: LossCalls) -> tf.Tensor:
        """Return the weight of a micro-batch's loss, a scalar. The weights of all micro-batches need not sum to 1.

        Args:
            part: its share of the examples.
            y_pred: the predictions, with the masks that Keras attaches to them.
            sample_weight: the weights of its examples, or None.
            calls: of the losses, in this micro-batch.

        Raises:
            ValueError: masks or weights differ between several losses, a loss is one number, or layers add losses
                beside one that masks or weights divide.
        """
        if not calls.losses or (self._is_own and self._reduction == "sum"):
            return part
        outputs = outputs_with_losses(self._model, y_pred)
        of_outputs = [mask for mask in map(mask_of, outputs) if mask is not None]
        masks = [*of_outputs, *calls.masks]
        if len(of_outputs) == len(calls.masks) == 1:  # Keras joins the two
            masks = [tf.logical_and(*masks)]
        if calls.one_number and (masks or sample_weight is not None):
            raise ValueError(
                f"the loss {calls.one_number[0].name} gives one number for a micro-batch, so that weights of examples "
                'and masks do not act on it: return one value for each example, or say loss="batch"'
            )
        weights = keras.tree.flatten(sample_weight) if self._reduction == "mean_with_sample_weight" else []
        divisors = [divisor for divisor in (*masks, *weights) if divisor is not None]
        if self._reduction == "sum" or not divisors:
            return part
        if len(self._losses) > 1 or len(divisors) > 1:
            raise ValueError(
                "several losses with masks, or with weights that divide them, can't be joined over micro-batches: "
                "give them the reduction 'sum', leave all masks or losses out but one, or say loss=\"batch\""
            )
        if not self._is_own and losses_of_layers(self._model, self._declared):
            raise ValueError(
                "add_loss and activity regularizers count by examples, and masks or weights divide the compiled loss, "
                "so the two can't be joined over micro-batches: leave the one or the other out, give the loss the "
                "reduction 'sum', or say loss=\"batch\""
            )
        return part * tf.reduce_mean(tf.cast(divisors[0], part.dtype))

    def counted(self, loss: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Return what a loss of a micro-batch adds to that of the batch: all of a sum, else its share."""
        return loss if self._reduction == "sum" else share * loss

    def _joined(self, loss: tf.Tensor, part: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Return what a micro-batch adds to the total loss of the batch.

        Losses of weights and of `add_loss` are part of `loss`, and a compiled loss that is a sum counts them once for
        the batch.
        """
        if self._is_own:
            return self.counted(loss, share)
        sums = [each.value for each in losses_of_layers(self._model, self._declared) if each.join is Join.SUM]
        if self._reduction == "sum":
            # as Keras has added them: on replicas each takes its share
            added = [self._model._aggregate_additional_loss(loss) for loss in self._model.losses]
            return loss - (1.0 - part) * (_total(added, loss) - _total(sums, loss))
        return self.counted(loss, share) + (1.0 - share) * _total(sums, loss)


def _total(losses: list[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    return tf.add_n([tf.cast(loss, like.dtype) for loss in losses]) if losses else tf.zeros_like(like)


def check_reductions(losses: Sequence[keras.losses.Loss]) -> None:
    """Raise ValueError if a loss has no number to minimise."""
    if unreduced := [loss.name for loss in losses if loss.reduction in (None, "none")]:
        raise ValueError(
            f"the loss {unreduced[0]} has reduction=None, and so no single number to minimise: choose another reduction"
        )


def count_replicas() -> int:
    """Return the number of replicas that make an update together."""
    replicas: int = tf.distribute.get_strategy().num_replicas_in_sync
    return replicas


# --- records of the calls of compiled losses --------------------------------------------------------------------------


@dataclass
class LossCalls:
    """Calls of losses.

    Attributes:
        losses: those that were called.
        masks: those that a loss put on its own values, such as `ignore_class` does.
        one_number: the losses with one number for a batch.
    """

    losses: list[keras.losses.Loss] = field(default_factory=list)
    masks: list[tf.Tensor] = field(default_factory=list)
    one_number: list[keras.losses.Loss] = field(default_factory=list)


@contextmanager
def record_loss_calls(
    losses: Sequence[keras.losses.Loss], factor: Callable[[keras.losses.Loss, tf.Tensor], float]
) -> Iterator[LossCalls]:
    """Record the calls of losses, and multiply the values of each by `factor(loss, values)`.

    Raises:
        ValueError: a loss is no `keras.losses.Loss` with its `call` alone.
    """
    calls = LossCalls()
    distinct = list({id(loss): loss for loss in losses}.values())  # one may be that of several outputs
    for loss in distinct:
        if type(loss).__call__ is not keras.losses.Loss.__call__ or "call" in vars(loss):
            raise ValueError(f"the loss {loss.name} has a __call__ of its own: give its class a `call`, as Keras asks")
    for loss in distinct:
        loss.call = _recorded(loss, loss.call, calls, factor)
    try:
        yield calls
    finally:
        for loss in distinct:
            del loss.call  # the method of the class is seen again


def _recorded(
    loss: keras.losses.Loss,
    call: Callable[..., Any],
    calls: LossCalls,
    factor: Callable[[keras.losses.Loss, tf.Tensor], float],
) -> Callable[..., Any]:
    def recorded_call(y_true: Any, y_pred: Any) -> Any:
        values = call(y_true, y_pred)
        calls.losses.append(loss)
        mask = mask_of(values)
        if mask is not None:
            calls.masks.append(mask)
        if not values.shape.rank:
            calls.one_number.append(loss)
        scale = factor(loss, values)
        if scale == 1.0:
            return values
        scaled = values * tf.cast(scale, values.dtype)
        return scaled if mask is None else set_mask(scaled, mask)

    return recorded_call
