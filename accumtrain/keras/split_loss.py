"""The share of a micro-batch's loss in the loss of the whole batch, and trials that show it.

Keras divides the sum of a batch's losses by the number of examples, or by the sum of their weights. With a mask it
divides by the number of values that are left; with `reduction="sum"` it does not divide at all. The loss of the batch
is the mean of the losses of the micro-batches, each weighted by its own divisor. Losses of the user's own are tried,
with made-up and with real examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.keras.split_batch import count_examples
from accumtrain.models.keras_call import StatelessCall, call_in_mode, mask_of, read_values

EXAMPLES = 6  # of a batch that is made up
MARKS = (-1.0, -100.0, 255.0, math.nan)  # targets that own losses often leave out
TOLERANCE = 1e-4  # of a mean in float32
CALL_ERRORS = (ValueError, TypeError, IndexError, tf.errors.OpError)  # of a function that takes no such targets
# Keras's own that may join examples
LOSSES_OVER_BATCHES = (keras.losses.Dice, keras.losses.Tversky, keras.losses.Circle)
FUNCTIONS_OVER_BATCHES = (keras.losses.dice, keras.losses.tversky, keras.losses.circle)
TOLERANCE_OF_16_BITS, ROUNDING = 3e-2, 1e-6
HALF = {"float16", "bfloat16"}


class UntriedLossError(ValueError):
    """A loss has terms of the user's own, and none of its examples was seen yet."""


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
    return _computes_loss(model) or any(may_join_examples(compiled.loss) for compiled in _compiled_losses(model))


def _computes_loss(model: keras.Model) -> bool:
    return type(model).compute_loss is not keras.Model.compute_loss


def _compiled_losses(model: keras.Model) -> Sequence[Any]:
    return [] if model._compile_loss is None else model._compile_loss._flat_losses


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
        self._losses = _compiled_losses(model)
        reductions = {compiled.loss.reduction for compiled in self._losses}
        reductions = {"mean" if name == "sum_over_batch_size" else name for name in reductions} or {"mean"}
        if len(reductions) > 1:
            raise ValueError(
                f"losses of the reductions {', '.join(sorted(map(str, reductions)))} can't be joined over "
                "micro-batches: give all losses the same"
            )
        (self._reduction,) = reductions
        if self._reduction in (None, "none"):
            raise ValueError("a loss has reduction=None, and so no single number to minimise: choose another reduction")

    def kinds(self) -> Sequence[str]:
        """Return the kinds that the loss may be over the examples of a batch."""
        return ("mean", "sum") if self.is_own else ("sum" if self._reduction == "sum" else "mean",)

    def record_calls(self) -> AbstractContextManager[LossCalls]:
        """Record the calls of the losses, while the loss of a micro-batch is computed."""
        return record_loss_calls([compiled.loss for compiled in self._losses], self._trials)

    def of(self, part: tf.Tensor, y_pred: Any, sample_weight: Any, calls: LossCalls) -> tf.Tensor:
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
        """Return what a loss of a micro-batch adds to that of the batch: all of a sum, else its share."""
        return loss if self._reduction == "sum" else share * loss

    def _outputs_with_losses(self, y_pred: Any) -> list[tf.Tensor]:
        if not keras.tree.is_nested(y_pred):
            return [y_pred]
        structure = self._model._compile_loss._y_pred_build_structure
        outputs = keras.tree.pack_sequence_as(structure, keras.tree.flatten(y_pred))
        return [reduce(lambda inner, key: inner[key], compiled.path, outputs) for compiled in self._losses]

    def loss_without_layers(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """Return the loss of a batch without that of layers and weights; that of a model's own `compute_loss` whole."""
        if self.is_own:
            return self._model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        return self._model._compile_loss(y, y_pred, sample_weight) if self._losses else tf.zeros(())

    def joined(self, loss: tf.Tensor, part: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Return what a micro-batch adds to the total loss of the batch.

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
        one_number: names of the losses with one number for a batch.
        unlike_means: names of the losses whose value for a batch is not the mean of those of its examples.
    """

    masks: list[tf.Tensor] = field(default_factory=list)
    one_number: list[str] = field(default_factory=list)
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
                "can't be joined over micro-batches: return one value for each example, as Dice(axis=(1, 2, 3)) does"
            )
        if self.one_number and divided:
            raise ValueError(
                f"the loss {self.one_number[0]} gives one number for a batch, so that weights of examples and masks "
                "do not act on it: return one value for each example"
            )


@contextmanager
def record_loss_calls(losses: Sequence[keras.losses.Loss], trials: Trials) -> Iterator[LossCalls]:
    """Record the calls of losses. Those that may join examples are tried with a made-up batch.

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
    loss: keras.losses.Loss, call: Callable[..., Any], calls: LossCalls, trials: Trials
) -> Callable[..., Any]:
    def recorded_call(y_true: Any, y_pred: Any) -> Any:
        values = call(y_true, y_pred)
        if (mask := mask_of(values)) is not None:
            calls.masks.append(mask)
        one_number = len(values.shape) == 0
        if one_number:
            calls.one_number.append(loss.name)
        if one_number or may_join_examples(loss):
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
                f"can't be tried: return one value for each example\n{error}"
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


# --- the loss of real examples, tried: a mean or a sum over them ------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """A forward pass of some examples.

    Attributes:
        total: the loss without that of layers, or what a `compute_loss` of the model's own returns.
        share: what divides `total`, as a share of the examples: below 1 with masks and weights.
        of_layers: the losses that layers add.
        changed: it changes state of the model, as batch statistics and random draws do.
    """

    total: float
    share: float
    of_layers: list[float]
    changed: bool

    def open_values(self, known: LossTerms) -> list[float]:
        """Return the finite values of the terms that are not known yet."""
        pairs = zip((self.total, *self.of_layers), (known.total, *known.of_layers), strict=True)
        return [value for value, kind in pairs if kind is None and np.isfinite(value)]


class LossTrial:
    """Passes of two groups of examples, A and B, in six batches: AB, BA, AA, BB, and each of them alone.

    A mean and a sum are additive: the losses of AB and BA are together those of AA and BB. That holds with random draws
    as well, since the four batches have the same size and so the same draws. The loss of AA is that of A, if it is a
    mean, or twice that, if it is a sum. Nothing that a pass changes is kept.

    A is one example, repeated, and B are those after it. Examples are tried until no term of the batch is 0 for them.

    Args:
        model: compiled and built.
        batch: x, y and sample_weight, nested tensors [N, ...] or None.
        most: the most examples in a pass; two are taken for 1.
        share: of the losses that the model is compiled with.
    """

    def __init__(self, model: keras.Model, batch: Any, most: int, share: LossShare) -> None:
        self._model, self._batch, self._most, self._share = model, batch, max(2, most), share
        self._examples = int(count_examples(batch))
        own_dtypes = {layer.compute_dtype for layer in model._flatten_layers()}
        self._tolerance = TOLERANCE_OF_16_BITS if own_dtypes & HALF else TOLERANCE

    def find_terms(self, known: LossTerms | None) -> LossTerms:
        """Return the terms of the loss. One group of the batch after another is tried until all of them are known.

        Args:
            known: of an earlier batch, in which some terms were 0. The others stay what they are.

        Returns:
            The terms; None stands for those that are 0 for all examples of the batch.

        Raises:
            ValueError: one is neither a mean nor a sum over the examples, or can't be tried, or layers add more or
                fewer losses than before.
        """
        for start in range(0, self._examples, self._most):
            if known is None or not known.settled:
                known = self._find_in_group(range(start, min(start + self._most, self._examples)), known)
        assert known is not None, "a batch has examples"
        return known

    def _find_in_group(self, examples: range, known: LossTerms | None) -> LossTerms:
        """Return the terms after some more examples, which fit into one pass."""
        trained = self._pass(examples, training=True)
        if known is None:  # Keras's own losses are what their reduction says
            total = None if has_own_loss(self._model) else self._share.kinds()[0]
            known = LossTerms(total, (None,) * len(trained.of_layers))
        known.check_number(self._model, trained.of_layers)
        if self._examples == 1 or not any(trained.open_values(known)):  # each rule is right for one example
            return known
        training = not trained.changed and self._pass(examples, training=True) == trained
        for example in examples:
            if any(trained.open_values(known)):
                known = self._find_by_example(example, known, training)
        if any(trained.open_values(known)):
            raise ValueError(self._in_training_only())
        return known

    def _find_by_example(self, example: int, known: LossTerms, training: bool) -> LossTerms:
        """Return the terms after the six batches, if one that is not known is not 0 in them."""
        half = self._most // 2
        first, second = [example] * half, [(example + place) % self._examples for place in range(1, half + 1)]
        both = self._pass([*first, *second], training)
        if len(both.of_layers) != len(known.of_layers):
            raise ValueError(self._in_training_only())
        if not any(both.open_values(known)):
            return known
        others = ([*second, *first], [*first, *first], [*second, *second], first, second)
        passes = [both, *(self._pass(batch, training) for batch in others)]
        loosely = both.changed  # random draws, which differ between batches of two sizes
        of_layers = zip(*(trial.of_layers for trial in passes), strict=True)
        kinds = tuple(
            kind or self._kind(f"add_loss, call {place + 1} in {self._model.name},", np.array(values), loosely)
            for place, (kind, values) in enumerate(zip(known.of_layers, of_layers, strict=True))
        )
        name = f"compute_loss of {self._model.name}" if self._share.is_own else f"the loss of {self._model.name}"
        totals, shares = np.array([(trial.total, trial.share) for trial in passes]).T
        return LossTerms(known.total or self._kind(name, totals, loosely, shares, self._share.kinds()), kinds)

    def _in_training_only(self) -> str:
        return (
            f"{self._model.name} adds a loss in training only, and its batch statistics or random draws don't allow to "
            "try it there: call add_loss whatever `training` is, with the same factor, or leave it out"
        )

    def _pass(self, examples: Sequence[int], training: bool) -> Pass:
        model = self._model
        x, y, sample_weight = keras.tree.map_structure(
            lambda tensor: None if tensor is None else tf.gather(tensor, examples), self._batch
        )
        weights = read_values(model.trainable_variables)
        metrics = [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in model.metrics_variables]
        with StatelessCall([*weights, *metrics]) as call:
            y_pred = call_in_mode(model, x, training=training)
            with self._share.record_calls() as calls:
                total = self._share.loss_without_layers(x, y, y_pred, sample_weight)
            share = self._share.of(tf.ones(()), y_pred, sample_weight, calls)
            of_layers = [float(loss) for loss in losses_of_layers(model)]
        changed = call.assignments.keys() - {id(variable) for variable in model.metrics_variables}
        return Pass(float(total), float(share), of_layers, bool(changed))

    def _kind(
        self,
        name: str,
        values: np.ndarray,
        loosely: bool,
        shares: np.ndarray | float = 1.0,
        kinds: Sequence[str] = ("mean", "sum"),
    ) -> str | None:
        """Return one of `kinds`, or None if the values don't tell, as all are 0 or none is finite.

        Args:
            loosely: a group alone may differ by a quarter.
            kinds: what is allowed.
        """
        finite = np.isfinite(values)
        if not np.any(values) or not np.any(finite):
            return None
        largest = float(np.max(np.abs(values)))
        for kind, weights, factor in (("mean", shares, 1.0), ("sum", 1.0, 2.0)) if np.all(finite) else ():
            ab, ba, aa, bb, *_ = values * weights
            additive = abs(ab + ba - aa - bb) <= self._tolerance * largest
            twice, alone = values[2:4], factor * values[4:]
            alike = np.allclose(twice, alone, 0.25 if loosely else self._tolerance, ROUNDING * largest)
            if additive and alike and kind in kinds:
                return kind
        raise ValueError(
            f"{name} is neither the mean nor the sum of the losses of its examples, so it can't be joined over "
            "micro-batches: make it a mean over the examples, such as keras.ops.mean of one value for each of them, "
            "and draw random numbers from a keras.random.SeedGenerator alone"
        )
