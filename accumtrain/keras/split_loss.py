"""The share of a micro-batch's loss in the loss of the whole batch.

Keras divides the sum of a batch's losses by the number of examples, or by the sum of their weights. With a mask it
divides by the number of values that are left; with `reduction="sum"` it does not divide at all. The loss of the batch
is the mean of the losses of the micro-batches, each weighted by its own divisor. Losses of the user's own are tried,
with made-up examples here and with real ones in loss_trial.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from accumtrain.models.keras.call import mask_of

EXAMPLES = 6  # of a batch that is made up
MARKS = (-1.0, -100.0, 255.0, math.nan)  # targets that own losses often leave out
TOLERANCE = 1e-4  # of a mean in float32
CALL_ERRORS = (ValueError, TypeError, IndexError, tf.errors.OpError)  # of a function that takes no such targets
# Keras's own that may join examples
LOSSES_OVER_BATCHES = (keras.losses.Dice, keras.losses.Tversky, keras.losses.Circle)
FUNCTIONS_OVER_BATCHES = (keras.losses.dice, keras.losses.tversky, keras.losses.circle)


class UntriedLossError(ValueError):
    """A loss has terms of the user's own, and none of its examples was seen yet."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(
            f"the loss of {model.name} has terms of your own, which have to be seen with real examples first: train "
            "with fit or train_on_batch"
        )


@dataclass(frozen=True)
class LossTerms:
    """Kinds of the terms of a loss, over the examples of a batch.

    A kind is `mean`, `sum`, or None for a term that was 0 so far.

    Attributes:
        total: the loss without that of layers, or what a `compute_loss` of the model's own returns.
        of_layers: each loss that layers add, in their order.
    """

    total: str | None = "mean"
    of_layers: tuple[str | None, ...] = ()

    @property
    def settled(self) -> bool:
        return None not in (self.total, *self.of_layers)

    def check_number(self, model: keras.Model, losses: Sequence[Any]) -> None:
        """Raise ValueError if these are more or fewer losses of layers than were tried."""
        if len(losses) != len(self.of_layers):
            raise ValueError(
                f"layers of {model.name} add {len(losses)} losses, and {len(self.of_layers)} with the examples before: "
                "let them add the same in each pass"
            )


def losses_of_layers(model: keras.Model) -> list[tf.Tensor]:
    """Return the losses that layers have added in the last pass, scalars. Those of weights are left out."""
    of_weights = sum(variable.regularizer is not None for variable in model.trainable_variables)
    losses = model.losses  # those of weights come last
    return [model._aggregate_additional_loss(loss) for loss in losses[: len(losses) - of_weights]]


def has_own_loss(model: keras.Model) -> bool:
    """Return whether the user's own code computes the loss of a compiled and built model, beside that of layers."""
    return computes_loss(model) or any(may_join_examples(compiled.loss) for compiled in compiled_losses(model))


def computes_loss(model: keras.Model) -> bool:
    """Return whether a model has a `compute_loss` of its own."""
    return type(model).compute_loss is not keras.Model.compute_loss


def compiled_losses(model: keras.Model) -> Sequence[Any]:
    """Return the losses that a built model is compiled with, one for each output that has any."""
    return [] if model._compile_loss is None else model._compile_loss._flat_losses


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
        trials: of losses.
        terms: of the loss; None if it was not tried on examples.

    Raises:
        ValueError: several losses have different reductions, or a loss has reduction=None.
    """

    def __init__(self, model: keras.Model, trials: Trials, terms: LossTerms | None = None) -> None:
        self._model, self._trials, self._terms = model, trials, terms
        self.is_own = computes_loss(model)
        self._is_own_sum = self.is_own and terms is not None and terms.total == "sum"
        self._losses = compiled_losses(model)
        reductions = {compiled.loss.reduction for compiled in self._losses}
        reductions = {"mean" if name == "sum_over_batch_size" else name for name in reductions} or {"mean"}
        if len(reductions) > 1:
            raise ValueError(
                f"losses of the reductions {', '.join(sorted(map(str, reductions)))} can't be joined over "
                "micro-batches: give all losses the same, or take whole_batch=True"
            )
        (self._reduction,) = reductions
        if self._reduction in (None, "none"):
            raise ValueError("a loss has reduction=None, and so no single number to minimise: choose another reduction")

    def kinds(self) -> Sequence[str]:
        """Return the kinds that the loss may be over the examples of a batch."""
        return ("mean", "sum") if self.is_own else ("sum" if self._reduction == "sum" else "mean",)

    def has_own_terms(self) -> bool:
        """Return whether the user's own code computes the loss, beside that of layers."""
        return has_own_loss(self._model)

    def of_micro_batch(
        self, part: tf.Tensor, x: Any, y: Any, y_pred: Any, sample_weight: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return what a micro-batch adds to the total loss of the batch, and the weight of its loss, scalars.

        Args:
            part: its share of the examples.
            y_pred: the predictions, with the masks that Keras attaches to them.

        Raises:
            UntriedLossError: there are terms that have to be tried, and were not.
            ValueError: see `_weight` and `_joined`.
        """
        with self._record_calls() as calls:
            loss = self._model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        share = self._weight(part, y_pred, sample_weight, calls)
        return self._joined(tf.cast(loss, part.dtype), part, share), share

    def of_examples(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the loss of some examples without that of layers and weights, and the weight of a batch of these.

        A `compute_loss` of the model's own is taken whole.
        """
        with self._record_calls() as calls:
            if self.is_own:
                loss = self._model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            else:
                loss = self._model._compile_loss(y, y_pred, sample_weight) if self._losses else tf.zeros(())
        return loss, self._weight(tf.ones(()), y_pred, sample_weight, calls)

    def _record_calls(self) -> AbstractContextManager[LossCalls]:
        return record_loss_calls([compiled.loss for compiled in self._losses], self._trials)

    def _weight(self, part: tf.Tensor, y_pred: Any, sample_weight: Any, calls: LossCalls) -> tf.Tensor:
        """Return the weight of a micro-batch's loss, a scalar. The weights of all micro-batches need not sum to 1.

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
        of_outputs = [mask for mask in map(mask_of, self._outputs_with_losses(y_pred)) if mask is not None]
        masks = [*of_outputs, *calls.masks]
        if len(of_outputs) == len(calls.masks) == 1:  # Keras joins the two
            masks = [tf.logical_and(*masks)]
        calls.check(divided=bool(masks) or sample_weight is not None)
        weights = keras.tree.flatten(sample_weight) if self._reduction == "mean_with_sample_weight" else []
        divisors = [divisor for divisor in (*masks, *weights) if divisor is not None]
        if self._reduction == "sum" or not divisors or self._is_own_sum:
            return part
        if len(self._losses) > 1 or len(divisors) > 1:
            raise ValueError(
                "several losses with masks, or with weights that divide them, can't be joined over micro-batches: "
                "give them the reduction 'sum', leave all masks or losses out but one, or take whole_batch=True"
            )
        if losses_of_layers(self._model):
            raise ValueError(
                "add_loss and activity regularizers count by examples, and masks or weights divide the compiled loss, "
                "so the two can't be joined over micro-batches: leave the one or the other out, give the loss the "
                "reduction 'sum', or take whole_batch=True"
            )
        return part * tf.reduce_mean(tf.cast(divisors[0], part.dtype))

    def counted(self, loss: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Return what a loss of a micro-batch adds to that of the batch: all of a sum, else its share."""
        return loss if self._reduction == "sum" else share * loss

    def _outputs_with_losses(self, y_pred: Any) -> list[tf.Tensor]:
        if not keras.tree.is_nested(y_pred):
            return [y_pred]
        structure = self._model._compile_loss._y_pred_build_structure
        outputs = keras.tree.pack_sequence_as(structure, keras.tree.flatten(y_pred))
        return [reduce(lambda inner, key: inner[key], compiled.path, outputs) for compiled in self._losses]

    def _joined(self, loss: tf.Tensor, part: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Return what a micro-batch adds to the total loss of the batch.

        Losses of weights and of `add_loss` are part of `loss`, and a compiled loss that is a sum counts them once for
        the batch.

        Raises:
            UntriedLossError: there are terms that have to be tried, and were not.
            ValueError: layers add another number of losses than when they were tried.
        """
        of_layers = losses_of_layers(self._model)
        if self._terms is None:
            if of_layers or self.has_own_terms():
                raise UntriedLossError(self._model)
            sums = []
        elif self.is_own:
            return loss if self._is_own_sum else share * loss
        else:
            self._terms.check_number(self._model, of_layers)
            sums = [loss for loss, kind in zip(of_layers, self._terms.of_layers, strict=True) if kind == "sum"]
        if self._reduction == "sum":
            # as Keras has added them: on replicas each takes its share
            added = [self._model._aggregate_additional_loss(loss) for loss in self._model.losses]
            return loss - (1.0 - part) * (_total(added, loss) - _total(sums, loss))
        return self.counted(loss, share) + (1.0 - share) * _total(sums, loss)


def _total(losses: list[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    return tf.add_n([tf.cast(loss, like.dtype) for loss in losses]) if losses else tf.zeros_like(like)


# --- calls of compiled losses, watched --------------------------------------------------------------------------------


class Trials:
    """The results of trials. A loss or a metric is tried once for each signature, as eager steps call it each time."""

    def __init__(self) -> None:
        self._results: dict[Any, tuple[Any, bool]] = {}  # with what was tried, so that its id stays its own

    def result(self, tried: Any, arguments: Any, trial: Callable[[], bool]) -> bool:
        """Return the result of `trial`, or the earlier one for arguments [N, ...] of these shapes and dtypes."""
        signature = tuple((tuple(tensor.shape[1:]), str(tensor.dtype)) for tensor in keras.tree.flatten(arguments))
        if (id(tried), signature) not in self._results:
            self._results[id(tried), signature] = tried, trial()
        return self._results[id(tried), signature][1]


@dataclass
class LossCalls:
    """Calls of losses.

    Attributes:
        masks: those that a loss put on its own values, such as `ignore_class` does.
        one_number: the losses with one number for a batch.
        unlike_means: names of the losses whose value for a batch is not the mean of those of its examples.
    """

    masks: list[tf.Tensor] = field(default_factory=list)
    one_number: list[keras.losses.Loss] = field(default_factory=list)
    unlike_means: list[str] = field(default_factory=list)

    def check(self, *, divided: bool) -> None:
        """Check that the loss of a batch is made of those of its examples.

        Args:
            divided: masks or weights of examples act on the losses.

        Raises:
            ValueError: it is not.
        """
        if self.unlike_means:
            raise ValueError(
                f"the loss {self.unlike_means[0]} of a batch is not the mean of the losses of its examples, so it "
                "can't be joined over micro-batches: return one value for each example, as Dice(axis=(1, 2, 3)) does, "
                "or take whole_batch=True"
            )
        if self.one_number and divided:
            raise ValueError(
                f"the loss {self.one_number[0].name} gives one number for a batch, so that weights of examples and "
                "masks do not act on it: return one value for each example"
            )


@contextmanager
def record_loss_calls(losses: Sequence[keras.losses.Loss], trials: Trials | None) -> Iterator[LossCalls]:
    """Record the calls of losses. Those that may join examples are tried with a made-up batch, unless `trials` is None.

    Raises:
        ValueError: a loss is no `keras.losses.Loss` with its `call` alone, or has one number and can't be tried.
    """
    calls = LossCalls()
    distinct = list({id(loss): loss for loss in losses}.values())  # one may be that of several outputs
    for loss in distinct:
        if type(loss).__call__ is not keras.losses.Loss.__call__ or "call" in vars(loss):
            raise ValueError(f"the loss {loss.name} has a __call__ of its own: give its class a `call`, as Keras asks")
    for loss in distinct:
        loss.call = _recorded(loss, loss.call, calls, trials)
    try:
        yield calls
    finally:
        for loss in distinct:
            del loss.call  # the method of the class is seen again


def _recorded(
    loss: keras.losses.Loss, call: Callable[..., Any], calls: LossCalls, trials: Trials | None
) -> Callable[..., Any]:
    def recorded_call(y_true: Any, y_pred: Any) -> Any:
        values = call(y_true, y_pred)
        if (mask := mask_of(values)) is not None:
            calls.masks.append(mask)
        one_number = len(values.shape) == 0
        if one_number:
            calls.one_number.append(loss)
        if trials is not None and (one_number or may_join_examples(loss)):
            is_mean = partial(_is_mean, loss, call, y_true, y_pred, one_number)
            if not trials.result(loss, (y_true, y_pred), is_mean):
                calls.unlike_means.append(loss.name)
        return values

    return recorded_call


def may_join_examples(loss: keras.losses.Loss) -> bool:
    """Return whether a loss is the user's own, or one of Keras's that may have one number for a batch."""
    function = getattr(loss, "fn", type(loss))
    return isinstance(loss, LOSSES_OVER_BATCHES) or function in FUNCTIONS_OVER_BATCHES or not is_of_keras(function)


def is_of_keras(code: Any) -> bool:
    """Return whether a function or a class is one of Keras's own."""
    return str(getattr(code, "__module__", "")).startswith("keras.")


def _is_mean(loss: keras.losses.Loss, call: Callable[..., Any], y_true: Any, y_pred: Any, one_number: bool) -> bool:
    """Return whether the loss of a made-up batch is the mean of the losses of its examples."""
    if one_number and loss.reduction == "sum":
        return False
    random = np.random.default_rng(0)
    with tf.init_scope():
        outputs, targets = made_up_outputs(y_pred, random), made_up_targets(y_true, random)
        try:
            same = _keeps_mean(call, targets, outputs)
        except CALL_ERRORS as error:
            if not one_number:
                return True  # a value for each example, as Keras asks of a loss
            raise ValueError(
                f"the loss {loss.name} gives one number for a batch, and whether that is a mean over its examples "
                f"can't be tried: return one value for each example, or take whole_batch=True\n{error}"
            ) from error
        for mark in MARKS:
            marked = keras.tree.map_structure(partial(_with_mark, mark=mark), targets)
            try:
                same = same and _keeps_mean(call, marked, outputs)
            except CALL_ERRORS:
                continue  # so it leaves no such targets out
    return same


def _keeps_mean(call: Callable[..., Any], targets: Any, outputs: Any) -> bool:
    """Return whether the value of a batch is the mean of those of its examples.

    Raises:
        ValueError: neither is finite.
    """

    def mean_of(examples: slice) -> float:
        batch = keras.tree.map_structure(lambda tensor: tensor[examples], (targets, outputs))
        return float(tf.reduce_mean(call(*batch)))

    whole, mean = mean_of(slice(None)), float(np.mean([mean_of(slice(at, at + 1)) for at in range(EXAMPLES)]))
    if not np.isfinite([whole, mean]).any():
        raise ValueError(f"its value is {whole}")
    return abs(whole - mean) <= TOLERANCE * max(abs(whole), abs(mean), 1e-3)


def made_up_outputs(like: Any, random: np.random.Generator) -> Any:
    """Return probabilities for `EXAMPLES` examples, in the structure, shapes and dtypes of outputs."""
    return _made_up(like, lambda shape: random.uniform(0.1, 0.9, shape))


def made_up_targets(like: Any, random: np.random.Generator) -> Any:
    """Return targets of 0 and 1 for `EXAMPLES` examples, in the structure, shapes and dtypes of others."""
    return _made_up(like, lambda shape: random.integers(0, 2, shape))


def _made_up(like: Any, draw: Callable[[list[int]], np.ndarray]) -> Any:
    def tensor_like(tensor: tf.Tensor) -> tf.Tensor:
        sizes = [3 if size is None else size for size in tensor.shape[1:]]
        return tf.constant(draw([EXAMPLES, *sizes]), tensor.dtype)

    return keras.tree.map_structure(tensor_like, like)


def _with_mark(targets: tf.Tensor, mark: float) -> tf.Tensor:
    """Replace every second target of the later examples, so that examples differ in how many they keep."""
    flat = targets.numpy().reshape(EXAMPLES, -1)
    flat[EXAMPLES // 2 :, ::2] = mark
    return tf.constant(flat.reshape(targets.shape), targets.dtype)
