"""Check a window on the user's own devices: its gradient, and the moving statistics that its commit writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import Mode, micro_mode
from accumtrain.backprop.model import Model
from accumtrain.engine.compiled_function import FUSION_ONLY, CompiledFunction
from accumtrain.engine.losses import Batch, PerExample, WholeBatch, count_examples, example_weights, weighted_sums
from accumtrain.engine.runtime import Runtime
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.measure.verify.result import ROUNDING, CheckResult, max_or_nan, ratio, relative_difference

# It allows only for the rounding of the buffer's own sums of K gradients.
SUM_BOUND = {"float32": 1e-6, "bfloat16": 1e-6, "float64": 1e-13}
STATISTICS_BOUND = 1e-6

Moments = list[tuple[np.ndarray, np.ndarray]]  # mean and variance, both [C], of each norm of `Model.norms`


@dataclass(frozen=True)
class WindowOfExamples:
    """The examples of one window, as `steps` micro-batches or as one (`micro_batches(steps=1)`).

    Attributes:
        arrays: inputs, targets and weight, of `steps` * `batch` rows each. They are arrays or structures of arrays.
        steps: number of micro-steps.
        batch: examples per micro-step over all replicas.
    """

    arrays: Mapping[str, Any]
    steps: int
    batch: int

    def micro_batches(self, strategy: tf.distribute.Strategy | None = None, steps: int | None = None) -> Any:
        """Return an iterator over `steps` equal global micro-batches, in order. Without a strategy the current one."""
        strategy = strategy or tf.distribute.get_strategy()
        rows = self.steps * self.batch // (steps or self.steps)
        dataset = tf.data.Dataset.from_tensor_slices(dict(self.arrays)).batch(rows, drop_remainder=True)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return iter(strategy.experimental_distribute_dataset(dataset.with_options(options)))

    def as_batch(self, rows: int | None = None) -> dict[str, Any]:
        """Return all examples, or the first `rows`, as one batch."""
        batch: dict[str, Any] = tf.nest.map_structure(lambda array: tf.constant(array[:rows]), dict(self.arrays))
        return batch


@dataclass(frozen=True)
class WindowResult:
    """The results of the checks of a window, and values that later checks need.

    Attributes:
        weights, after: the weights before and after the commit.
        scalars: the scalars of the commit.
        gradients: the window's mean gradient.
        statistics: moving mean and variance of each batch normalisation after the commit.
        first: plain back-propagation of the first micro-batch of the first replica.
        repeatable: the same pass gave the same bits twice.
    """

    results: list[CheckResult]
    weights: list[np.ndarray]
    after: list[np.ndarray]
    scalars: dict[str, float]
    gradients: list[np.ndarray]
    statistics: list[np.ndarray]
    first: Pass
    repeatable: bool


def check_window(
    window: Window,
    step: Step,
    runtime: Runtime,
    examples: WindowOfExamples,
    precision: str,
    bitwise: bool,
) -> WindowResult:
    """Compare a window at update 0 with plain back-propagation, and commit it.

    Args:
        bitwise: the model's operations give the same bits in every graph.
    """
    strategy = runtime.strategy
    with strategy.scope():
        reference, other_draws = (
            PlainGradient(window.model, window.loss_function, strategy, seed, window.micro_steps)
            for seed in (window.seed, window.seed + 1)
        )
    (first, *_), (again, *_) = (reference(examples, 1) for _ in range(2))
    (otherwise, *_) = other_draws(examples, 1)
    gradient, moving = _add_passes(window, reference(examples, examples.steps))

    whole = mean_gradient(window, step, runtime, examples.micro_batches(strategy, steps=1), 1)
    step.drop()
    split = mean_gradient(window, step, runtime, examples.micro_batches(strategy), examples.steps)
    weights = [variable.numpy() for variable in window.variables_]
    scalars = {name: float(value) for name, value in step.commit().items()}
    after = [variable.numpy() for variable in window.variables_]
    reference_of = "plain back-propagation of all together" if window.whole_batch else "the mean of each alone"
    results = [
        CheckResult(
            f"gradient of {examples.steps} micro-batches against {reference_of}",
            relative_difference(split, gradient),
            (SUM_BOUND if bitwise else ROUNDING)[precision],
        ),
        _split_against_whole(split, whole, precision, window, otherwise.loss != first.loss),
        *_moving_statistics(window, moving),
    ]
    repeatable = all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(first.gradients, again.gradients, strict=True)
    )
    return WindowResult(results, weights, after, scalars, split, moving_statistics(window), first, repeatable)


def _split_against_whole(
    split: list[np.ndarray], whole: list[np.ndarray], precision: str, window: Window, random: bool
) -> CheckResult:
    name = f"gradient of {window.micro_steps} micro-batches against one batch"
    difference, bound, note = relative_difference(split, whole), ROUNDING[precision], ""
    if window.model.norms:
        note = "no bound can hold with batch norm: each micro-batch is normalised by its own statistics"
    elif random and difference > bound:  # numbers that are drawn per example do not depend on the split
        note = "no bound can hold: the model draws other random numbers per micro-batch"
    return CheckResult(name, difference, None if note else bound, note)


def mean_gradient(window: Window, step: Step, runtime: Runtime, batches: Any, count: int) -> list[np.ndarray]:
    """Return the mean gradient that the buffers hold after `count` micro-steps."""
    step.accumulate(batches, count)
    step.go_back()
    with runtime.reading(window.buffers):
        weight = float(window.weight.numpy())
        return [buffer.numpy() / weight for buffer in window.gradients]


def assign_weights(window: Window, weights: Sequence[np.ndarray]) -> None:
    for variable, value in zip(window.variables_, weights, strict=True):
        variable.assign(tf.cast(value, variable.dtype))


# ---- moving statistics ----


def moving_statistics(window: Window) -> list[np.ndarray]:
    """Return moving mean and variance of each batch normalisation."""
    return [moving.numpy() for norm in window.model.norms for moving in (norm.moving_mean, norm.moving_variance)]


def _add_passes(window: Window, passes: Iterator[Pass]) -> tuple[list[np.ndarray], Moments]:
    """Return the mean gradient of all passes of a window, and the moving statistics after its commit, in float64."""
    totals: list[np.ndarray] = [np.zeros(variable.shape) for variable in window.variables_]
    weight, parts = 0.0, []
    for part in passes:
        for total, gradient in zip(totals, part.gradients, strict=True):
            total += gradient
        weight += part.weight
        parts += part.statistics
    examples = sum(count for count, _ in parts)
    moving = []
    for index, norm in enumerate(window.model.norms):
        found = [(count / examples, *statistics[index]) for count, statistics in parts]
        mean = sum(share * np.asarray(m, np.float64) for share, m, _ in found)
        variance = sum(share * (np.asarray(v, np.float64) + np.square(m - mean)) for share, m, v in found)
        old_mean, old_variance = (
            value.numpy().astype(np.float64) for value in (norm.moving_mean, norm.moving_variance)
        )
        rate = 1.0 - norm.momentum
        moving.append((old_mean + rate * (mean - old_mean), old_variance + rate * (variance - old_variance)))
    return [total / weight for total in totals], moving


def _moving_statistics(window: Window, expected: Moments) -> list[CheckResult]:
    """Check the moving statistics. The error of a mean is relative to the larger of |mean| and standard deviation."""
    if not window.model.norms:
        return []
    errors: dict[str, list[float]] = {"means": [], "variances": []}
    for norm, (mean, variance) in zip(window.model.norms, expected, strict=True):
        errors["means"] += _relative(norm.moving_mean, mean, np.maximum(np.abs(mean), np.sqrt(variance)))
        errors["variances"] += _relative(norm.moving_variance, variance, variance)
    return [
        CheckResult(f"moving {kind} against float64, worst channel", max_or_nan(found), STATISTICS_BOUND)
        for kind, found in errors.items()
    ]


def _relative(moving: tf.Variable, expected: np.ndarray, scale: np.ndarray) -> list[float]:
    return [ratio(float(error), float(size)) for error, size in zip(abs(moving.numpy() - expected), scale, strict=True)]


# ---- the reference: one tf.GradientTape around the whole model, without accumtrain's tape and buffers ----


@dataclass(frozen=True)
class Pass:
    """Plain back-propagation on one replica: of one micro-batch, or of all if the loss is of the whole batch.

    Attributes:
        loss, weight: sums over the examples.
        gradients: of the summed loss, one per trainable variable.
        statistics: the examples of each micro-batch, and its statistics of each batch normalisation. The variance is
            biased.
    """

    loss: float
    weight: float
    gradients: list[np.ndarray]
    statistics: list[tuple[float, Moments]]


class PlainGradient:
    """Runs the reference on every replica. Create it inside the strategy's scope.

    It keeps every activation, so it takes the memory of model.memory=store for one micro-batch.

    Args:
        loss: (labels [N], logits [N, classes]) -> losses [N], or one of the whole batch.
        seed: the run's seed. Random layers draw the same numbers as in the same micro-step of update 0.
        micro_steps: number of micro-steps in a window.
    """

    def __init__(
        self,
        model: Model,
        loss: PerExample | WholeBatch,
        strategy: tf.distribute.Strategy,
        seed: int,
        micro_steps: int,
    ):
        self._model, self._loss, self._strategy = model, loss, strategy
        self._seed, self._micro_steps = seed, micro_steps
        # It has the options of a step, as others give other bits.
        self._run = CompiledFunction(self._differentiate_on_all, FUSION_ONLY)

    def __call__(self, examples: WindowOfExamples, count: int) -> Iterator[Pass]:
        """Yield the passes of the first `count` global micro-batches, replica by replica."""
        batches = examples.micro_batches(self._strategy)
        together = count if isinstance(self._loss, WholeBatch) else 1
        for micro_step in range(0, count, together):
            results = self._run(batches, tf.constant(micro_step), together)
            for number in range(self._strategy.num_replicas_in_sync):
                yield Pass(
                    *tf.nest.map_structure(
                        lambda value, number=number: self._strategy.experimental_local_results(value)[number].numpy(),
                        results,
                    )
                )

    def _differentiate_on_all(self, batches: Any, micro_step: tf.Tensor, together: int) -> Any:
        parts = [batches.get_next() for _ in range(together)]
        return self._strategy.run(self._differentiate, args=(parts, micro_step))

    def _differentiate(self, batches: list[Batch], first: tf.Tensor) -> Any:
        modes = [self._mode(batch, first + number) for number, batch in enumerate(batches)]
        variables = list(self._model.trainable_variables)
        with tf.GradientTape() as tape:
            outputs = [self._model(batch["inputs"], mode) for batch, mode in zip(batches, modes, strict=True)]
            loss = self._sum_losses(batches, outputs)
        found = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [tf.convert_to_tensor(gradient) for gradient in found]  # those of embeddings are tf.IndexedSlices
        statistics = [
            (count_examples(batch), [mode.statistics[norm] for norm in self._model.norms])
            for batch, mode in zip(batches, modes, strict=True)
        ]
        weight = tf.add_n([tf.reduce_sum(example_weights(batch)) for batch in batches])
        return loss, weight, gradients, statistics

    def _mode(self, batch: Batch, micro_step: tf.Tensor) -> Mode:
        replicas = self._strategy.num_replicas_in_sync
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        number = micro_step * replicas + tf.cast(replica, tf.int32)
        return micro_mode(self._seed, tf.constant(0), number, self._micro_steps * replicas, batch)

    def _sum_losses(self, batches: list[Batch], outputs: list[Any]) -> tf.Tensor:
        if isinstance(self._loss, WholeBatch):
            _, weight, loss = self._loss.of_batches(batches, outputs)
            return loss * tf.cast(weight, loss.dtype)
        return tf.add_n([weighted_sums([self._loss], *pair)[0] for pair in zip(outputs, batches, strict=True)])
