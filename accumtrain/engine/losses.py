"""Losses and metrics of classes, their weighted sums, and the loss scale of float16.

A loss or metric is a function of labels [N] and logits [N, classes] to one value per example, [N]. A loss of the whole
batch gives one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import tensorflow as tf

from accumtrain.backprop.linear_logits import LinearLogits, RowFunction
from accumtrain.engine.replica import join_replicas
from accumtrain.errors import ConfigError

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# inputs [N, ...] and targets [N, ...]. The others are optional. weight, float32 [N], is that of each example in means.
# other_targets [N, ...] are mixed with targets; share, float32 [N], is the part of targets in the mix.
Batch = Mapping[str, tf.Tensor]
SMALLEST_LOSS_SCALE = 1.0  # loss scale; a window that overflows at it has diverged


class Collector(Protocol):
    """Collects what an evaluation of a split measures beside means over examples."""

    @property
    def names(self) -> Sequence[str]:
        """The names of its metrics; there may be none."""

    @property
    def variables(self) -> Sequence[tf.Variable]:
        """The variables that `update` changes."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts about the answers that the state gives, found by the last `take`, as JSON values."""

    def reset(self) -> None:
        """Forget all batches."""

    def update(self, batch: Batch, outputs: Any) -> None:
        """Add the part of a batch that a replica has, and the outputs for it. It is called in graphs.

        The outputs are a `LinearLogits` only if the collector has `takes_linear_logits` = True.
        """

    def take(self) -> dict[str, float]:
        """Return the metrics by name, of all batches since the last call."""


class WholeBatch:
    """A loss of all examples of an update, which may compare them: labels [B], outputs [B, ...] -> a number.

    Args:
        or_say: another remedy, for the end of messages about models that it can't take.
    """

    def __init__(self, function: Callable[[Any, Any], tf.Tensor], or_say: str = ""):
        self._function, self.or_say = function, or_say

    def hold(self, batch: Batch, outputs: Any) -> Any:
        """Return what the loss takes of the outputs of a micro-batch. Raise ConfigError if they are not such."""
        check_outputs(outputs, example_weights(batch).shape[0], self.or_say)
        return outputs

    def of_batches(self, batches: Sequence[Batch], outputs: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the same as `of_held`, of the outputs of the model for each batch."""
        return self.of_held(batches, [self.hold(*pair) for pair in zip(batches, outputs, strict=True)])

    def of_held(self, batches: Sequence[Batch], held: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the weight of this replica's examples, that of all replicas', and the loss of these, scalars.

        Examples of weight 0 are left out. Call it in replica context.

        Args:
            held: by `hold`, of each batch.
        """
        own = tf.concat([example_weights(batch) for batch in batches], 0)
        labels, weights = join_replicas((join_examples([batch["targets"] for batch in batches]), own))

        def kept(tensor: tf.Tensor) -> tf.Tensor:
            return tf.boolean_mask(tensor, weights > 0.0) if tensor.shape.rank else tensor

        joined = join_replicas(join_examples(held))
        value = tf.convert_to_tensor(self._function(*tf.nest.map_structure(kept, (labels, joined))))
        if value.shape.rank != 0:
            raise ConfigError(
                f"{getattr(self._function, '__name__', self._function)}: returns values of the shape {value.shape}; a "
                "loss of the whole batch returns one number"
            )
        return tf.reduce_sum(own), tf.reduce_sum(weights), value


class OfSums(WholeBatch):
    """A loss of sums over all examples of an update. Only the sums of a micro-batch are held, and none of its outputs.

    Args:
        sums: targets [N, ...], outputs [N, ...] -> sums of each example, [N, K].
        count: from the number of outputs of a position to K.
        loss: sums over all examples, [K] -> a number.
        or_say: see `WholeBatch`.
    """

    def __init__(
        self, sums: PerExample, count: Callable[[int], int], loss: Callable[[tf.Tensor], tf.Tensor], or_say: str = ""
    ):
        self._sums, self.count, self.of_sums, self.or_say = sums, count, loss, or_say

    def hold(self, batch: Batch, outputs: Any) -> tf.Tensor:
        """Return the sums over the examples of a micro-batch, [K]."""
        used = (example_weights(batch) > 0.0)[:, tf.newaxis]
        sums = self._sums(batch["targets"], outputs)
        return tf.reduce_sum(tf.where(used, sums, tf.zeros_like(sums)), 0)

    def of_held(self, batches: Sequence[Batch], held: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        own = tf.reduce_sum(tf.concat([example_weights(batch) for batch in batches], 0))
        totals, weights = join_replicas((tf.add_n(held)[tf.newaxis], own[tf.newaxis]))
        return own, tf.reduce_sum(weights), self.of_sums(tf.reduce_sum(totals, 0))


class PerPosition:
    """A loss or metric of the positions of an example: the mean over those that have a target, or 0 without any.

    It is a function of targets, int32 [N, ...], below 0 where there is none, and outputs [N, ..., V] to values [N].

    Args:
        function: of targets [R] and logits [R, V] to values [R].
    """

    def __init__(self, function: PerExample):
        self.function, self.__name__ = function, getattr(function, "__name__", str(function))

    def __call__(self, targets: tf.Tensor, outputs: Any) -> tf.Tensor:
        (values,) = compute_by_position([self.function], targets, outputs)
        return sum_positions(values * _shares_of_positions(targets, values.dtype))


def compute_by_position(functions: Sequence[PerExample], targets: tf.Tensor, outputs: Any) -> list[tf.Tensor]:
    """Return values of each function for the positions of examples, [N, ...]; 0 where there is no target.

    Args:
        functions: see PerPosition.
        outputs: logits [N, ..., V], or their `LinearLogits`.
    """
    rows = tf.reshape(tf.maximum(targets, 0), [-1])
    if isinstance(outputs, LinearLogits):
        found = outputs.compute([partial(_call, function) for function in functions], rows)
    else:
        logits = tf.reshape(outputs, [-1, outputs.shape[-1]])
        found = [function(rows, logits) for function in functions]
    values = [tf.reshape(each, tf.shape(targets)) for each in found]
    return [tf.where(targets >= 0, each, tf.zeros_like(each)) for each in values]


def sum_positions(values: tf.Tensor, *, keepdims: bool = False) -> tf.Tensor:
    """Return the sum over the positions of each example: of [N, ...] to [N]."""
    return tf.reduce_sum(values, axis=[*range(1, values.shape.rank)], keepdims=keepdims)


def _shares_of_positions(targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the weight of each position in the mean of its example, [N, ...]."""
    has_target = tf.cast(targets >= 0, dtype)
    return has_target / tf.maximum(sum_positions(has_target, keepdims=True), 1.0)


def _call(function: PerExample, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return function(targets, logits)


def join_examples(parts: Sequence[Any]) -> Any:
    """Return nested tensors [N, ...] of several micro-batches as those of one. A scalar becomes the mean."""

    def joined(*tensors: tf.Tensor) -> tf.Tensor:
        return tf.concat(tensors, 0) if tensors[0].shape.rank else tf.reduce_mean(tf.stack(tensors), 0)

    return tf.nest.map_structure(joined, *parts)


def check_outputs(outputs: Any, examples: int | None, or_say: str) -> None:
    """Raise ConfigError if an output is neither a scalar nor real numbers for each example of a micro-batch.

    Args:
        or_say: see WholeBatch.
    """
    for output in tf.nest.flatten(outputs):
        rows = output.shape[0] if output.shape.rank else examples
        if output.dtype.is_complex or (None not in (rows, examples) and rows != examples):
            raise ConfigError(
                f"an output of the model has the shape {output.shape} and dtype {output.dtype.name} for {examples} "
                f"examples: a loss of the whole batch takes real numbers for each example{or_say}"
            )


def trained_outputs(outputs: Any) -> list[tf.Tensor]:
    """Return the outputs of a model through which a gradient goes."""
    return [output for output in tf.nest.flatten(outputs) if output.dtype.is_floating]


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return -log softmax(logits)[label], for labels of any integer dtype."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(class_index(labels), logits)


def accuracy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return 1 where the largest logit is that of the label, else 0; in the dtype of the logits."""
    right = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), class_index(labels))
    return tf.cast(right, logits.dtype)


def top5(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return 1 where the logit of the label is among the five largest, else 0; in the dtype of the logits."""
    _, largest = tf.math.top_k(logits, min(5, logits.shape[-1]))
    right = tf.reduce_any(tf.equal(largest, class_index(labels)[:, tf.newaxis]), axis=-1)
    return tf.cast(right, logits.dtype)


def weighted_sums(functions: Iterable[PerExample | WholeBatch], outputs: Any, batch: Batch) -> list[tf.Tensor]:
    """Return the sum of each function over the examples of a batch, weighted by example: scalars in its own dtype.

    Args:
        outputs: logits, or their `LinearLogits`, which is taken in chunks if all functions are means over its rows.

    An example with two labels has the mean of the values for each, weighted by its share. Cross-entropy is linear in
    the target, so this is its value for the mixed target. Accuracy counts a label for as much as the image shows of it.
    """
    if isinstance(outputs, LinearLogits):
        if rows := _Rows.of(functions := [*functions], outputs, batch):
            return rows.sum(outputs.compute(rows.functions, rows.batch))
        outputs = outputs.logits
    values = [_value(function, outputs, batch) for function in functions]
    return [tf.reduce_sum(tf.cast(example_weights(batch), value.dtype) * value) for value in values]


def loss_and_sums(
    functions: Sequence[PerExample | WholeBatch], outputs: Any, batch: Batch, scale: float | tf.Tensor
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the first of the `weighted_sums` times `scale`, a number that has a gradient, and all of the sums."""
    if isinstance(outputs, LinearLogits) and (rows := _Rows.of(functions, outputs, batch)):
        loss, values = outputs.compute_sum(rows.functions, rows.batch, rows.weights * scale)
        return loss, rows.sum(values)
    sums = weighted_sums(functions, outputs, batch)
    return sums[0] * scale, sums


@dataclass(frozen=True)
class _Rows:
    """The rows of a `LinearLogits`, examples or their positions, as a batch.

    Attributes:
        functions: of logits [n, V] and a part of the batch to values [n].
        weights: those of the rows, [R] in the dtype of the logits.
    """

    functions: list[RowFunction]
    batch: Batch
    weights: tf.Tensor

    @classmethod
    def of(cls, functions: Sequence[PerExample | WholeBatch], deferred: LinearLogits, batch: Batch) -> _Rows | None:
        """Return the rows; None if a function needs whole examples, or the whole batch."""
        rank, dtype = deferred.hidden.shape.rank, deferred.hidden.dtype
        weights = tf.cast(example_weights(batch), dtype)
        of_examples = [function for function in functions if not isinstance(function, WholeBatch)]
        if rank == 2 and len(of_examples) == len(functions):
            beside = {name: batch[name] for name in ("targets", "other_targets", "share") if name in batch}
            return cls([partial(_value, function) for function in of_examples], beside, weights)
        of_rows = [function.function for function in functions if isinstance(function, PerPosition)]
        if rank != 3 or "share" in batch or len(of_rows) < len(functions):
            return None
        targets = batch["targets"]
        rows = {"targets": tf.reshape(tf.maximum(targets, 0), [-1])}
        weights = tf.reshape(weights[:, tf.newaxis] * _shares_of_positions(targets, dtype), [-1])
        return cls([partial(_value, function) for function in of_rows], rows, weights)

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum of each function's values, weighted by row."""
        return [tf.reduce_sum(self.weights * each) for each in values]


def _value(function: PerExample | WholeBatch, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    if isinstance(function, WholeBatch):  # `differentiate` adds it later, for several batches
        return tf.zeros_like(example_weights(batch))
    value = tf.convert_to_tensor(function(batch["targets"], logits))
    if value.shape.rank not in (None, 1):
        raise ConfigError(
            f"{getattr(function, '__name__', function)}: returns values of the shape {value.shape}; a loss or metric "
            "returns one value for each example, [N]"
        )
    if "share" not in batch:
        return value
    share = tf.cast(batch["share"], value.dtype)
    return share * value + (1.0 - share) * function(batch["other_targets"], logits)


def example_weights(batch: Batch) -> tf.Tensor:
    """Return the weight of each example, float32 [N]; 1 if the batch has no weights."""
    labels = tf.nest.flatten(batch["targets"])
    return batch["weight"] if "weight" in batch else tf.ones(tf.shape(labels[0])[:1], tf.float32)


def count_examples(batch: Batch) -> tf.Tensor:
    """Return the number of examples whose weight is above 0, float32 []."""
    return tf.reduce_sum(tf.cast(example_weights(batch) > 0.0, tf.float32))


def class_index(labels: tf.Tensor) -> tf.Tensor:
    if not labels.dtype.is_integer:
        raise TypeError(f"labels are {labels.dtype.name}; a loss of classes takes integers 0..classes-1")
    return tf.cast(labels, tf.int32)


class LossScale(tf.Module):
    """A dynamic loss scale (Micikevicius et al. 2018, arXiv:1710.03740). Create it inside the strategy's scope.

    Without it, float16 would round small gradients to 0. It is halved after each window that overflows, and doubled
    after `growth_every` updates in a row.

    Args:
        initial: the first scale.
        growth_every: number of updates.

    Attributes:
        value: the scale, a float32 scalar.
        skipped: int64 scalar, number of windows that made no update: those that overflowed, and those without examples.
    """

    def __init__(self, initial: float, growth_every: int):
        super().__init__()
        self._growth_every = growth_every
        self.value = tf.Variable(initial, trainable=False, dtype=tf.float32, name="loss_scale")
        self.skipped = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped")
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates_at_this_scale")

    def after_update(self) -> None:
        """Count an update, and double the scale if it is due. Call it in replica context, on all replicas."""
        updates = self._updates + 1
        due = updates >= self._growth_every
        self._updates.assign(tf.where(due, tf.zeros_like(updates), updates))
        value = tf.convert_to_tensor(self.value)
        doubled = tf.where(tf.math.is_finite(2.0 * value), 2.0 * value, value)
        self.value.assign(tf.where(due, doubled, value))

    def after_skip(self, examples: tf.Tensor) -> None:
        """Count a window that made no update, and halve the scale. Call it in replica context, on all replicas.

        Args:
            examples: of the window, a scalar. Without any it has not overflowed, and the scale stays.
        """
        overflowed = examples > 0
        updates, value = tf.convert_to_tensor(self._updates), tf.convert_to_tensor(self.value)
        self._updates.assign(tf.where(overflowed, tf.zeros_like(updates), updates))
        self.value.assign(tf.where(overflowed, tf.maximum(value / 2.0, SMALLEST_LOSS_SCALE), value))
        self.skipped.assign_add(1)
