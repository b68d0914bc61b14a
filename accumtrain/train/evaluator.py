"""Evaluation of a model on a whole split: the means of loss and metrics, each example counted once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.config.schema import Config
from accumtrain.data.pipeline import DistributedBatches, make_eval_batches
from accumtrain.data.source import Dataset, Stream
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.losses import (
    Batch,
    Collector,
    OfSums,
    PerExample,
    WholeBatch,
    count_examples,
    example_weights,
    weighted_sums,
)
from accumtrain.engine.runtime import Runtime
from accumtrain.engine.step import CallLength
from accumtrain.engine.sums import sum_buffer
from accumtrain.errors import DataError
from accumtrain.tasks.config import LOSS
from accumtrain.tasks.objective import Objective


def build_evaluator(
    config: Config,
    objective: Objective,
    split: str,
    batch: int,
    model: Model,
    runtime: Runtime,
    ema: MovingAverage | None = None,
    *,
    reports: bool = False,
) -> Evaluator:
    """Return the evaluation of a model on a split of the data of an objective. Call it inside the strategy's scope.

    Args:
        batch: examples per batch over all replicas.
        reports: measure all that job=evaluate measures.
    """
    of_means, loss = objective.of_means(split), objective.evaluated_loss
    means = objective.means if isinstance(loss, OfSums) else {LOSS: loss, **objective.means}
    means |= {name: function for name, (function, _) in of_means.items()}
    if reports and config.eval.metrics is None:
        means |= objective.further_means
    collectors = objective.collectors(split, batch, runtime.replicas, reports=reports)
    if isinstance(loss, OfSums):
        collectors = [LossOfSums(loss, objective.stored.num_classes), *collectors]
    return Evaluator(
        model,
        ema,
        means,
        objective.data,
        split,
        batch,
        runtime,
        collectors,
        together=config.accum.count,
        of_means={name: of_mean for name, (_, of_mean) in of_means.items()},
    )


class Evaluator:
    """The evaluation of a model on a split of its data. Create it inside the strategy's scope.

    Args:
        ema: averages to evaluate in place of the weights, or None.
        means: functions (labels [N], logits [N, classes]) -> values [N], by name; `loss` is one of them, or one of the
            whole batch, or a collector measures it.
        split: name of the split.
        batch: examples per batch over all replicas.
        runtime: computes on the replicas of its strategy.
        collectors: of the other measures, made in the same scope.
        together: number of batches that a loss of the whole batch sees at once; the last may be fewer.
        of_means: functions from one of the means to the metric of its name, for metrics that are no means themselves.
    """

    def __init__(
        self,
        model: Model,
        ema: MovingAverage | None,
        means: Mapping[str, PerExample | WholeBatch],
        data: Dataset,
        split: str,
        batch: int,
        runtime: Runtime,
        collectors: Sequence[Collector] = (),
        *,
        together: int = 1,
        of_means: Mapping[str, Callable[[float], float]] | None = None,
    ):
        self._model, self._ema, self._runtime = model, ema, runtime
        self._means, self._of_means, self.collectors = dict(means), dict(of_means or {}), collectors
        self._whole_loss, self._together = means.get(LOSS), together
        self._held: list[tuple[Any, Any]] = []  # batches and what is held of each, before their loss is computed
        self.split, self._examples = split, data.splits[split]
        self._batches = -(-self._examples.size // batch)
        self._dataset = DistributedBatches(
            runtime.strategy, lambda shard: make_eval_batches(data, batch=batch, split=split, shard=shard)
        )
        self._dtype = model.trainable_variables[0].dtype
        counts = [sum_buffer([], tf.float64) for _ in ("weight", "examples")]  # float32 counts to 2^24 alone
        self._sums = [*(sum_buffer([], self._dtype) for _ in self._means), *counts]
        self._own_variables = [*self._sums, *(own for collector in collectors for own in collector.variables)]
        whole = isinstance(self._whole_loss, WholeBatch)
        defers_logits = not whole and all(getattr(collector, "takes_linear_logits", False) for collector in collectors)
        self._mode = Mode(training=False, defers_logits=defers_logits)
        self._add = self._add_and_hold if whole else runtime.on_batches(self._add_batch, self._own_variables)
        self._add_one = runtime.on_replicas(self._add_batch, self._own_variables)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the answers, found by the last evaluation, as JSON values. They are kept with the state."""
        return {name: value for collector in self.collectors for name, value in collector.facts.items()}

    @property
    def names(self) -> list[str]:
        """The names of the loss and of metrics."""
        names = [*self._means, *(name for collector in self.collectors for name in collector.names)]
        return sorted(names, key=lambda name: name != LOSS)

    def __call__(self, stop: Callable[[], bool], report: Callable[[int, int], None]) -> dict[str, float] | None:
        """Evaluate the current state.

        Args:
            stop: called between compiled calls; the evaluation is abandoned if it returns True.
            report: called with the number of batches done and the number of all batches.

        Returns:
            loss and metrics by name, examples, seconds; None if the evaluation was abandoned.

        Raises:
            DataError: all examples are left out (data.on_error=skip), or a stream has other examples than at first.
        """
        started, pace, done = time.perf_counter(), CallLength(), 0
        batches = iter(self._dataset)
        self._forget()  # the sums of an abandoned evaluation
        with self._averages():
            while done < self._batches:
                if stop():
                    return None
                count = pace.next(self._batches - done)
                with pace.timed(count):
                    try:
                        self._add(batches, count)
                    except (tf.errors.OutOfRangeError, StopIteration) as error:
                        raise self._changed() from error
                done += count
                report(done, self._batches)
        self._add_loss_of_held()
        with self._runtime.assigning(self._own_variables):
            *sums, weight, examples = self._take_sums()
            if isinstance(self._examples, Stream) and next(batches, None) is not None:
                raise self._changed()
            if not examples:
                raise DataError(f"none of the {self.split} examples can be used: see job=check, which names them")
            means = {name: total / weight for name, total in zip(self._means, sums, strict=True)}
            found = {
                **means,
                **{name: of_mean(means[name]) for name, of_mean in self._of_means.items()},
                **{name: value for collector in self.collectors for name, value in collector.take().items()},
            }
            return {
                **{name: found[name] for name in self.names},
                "examples": int(examples),
                "seconds": time.perf_counter() - started,
            }

    def _changed(self) -> DataError:
        return DataError(
            f"the {self.split} examples are no longer the {self._examples.size:,} that were counted at the beginning: "
            "let each reading of them give the same ones"
        )

    @contextmanager
    def _averages(self) -> Iterator[None]:
        """Let the model compute with the averages of its weights, if there are any."""
        if self._ema is None:
            yield
            return
        with self._runtime.assigning([*self._ema.weights, *self._ema.averages]), self._ema.in_place():
            yield

    def _add_batch(self, batch: Batch) -> Any:
        """Add a batch to the sums. Return what a loss of the whole batch holds of it; None of another loss."""
        outputs = self._model(batch["inputs"], self._mode)
        sums = weighted_sums(self._means.values(), outputs, batch)
        for collector in self.collectors:
            collector.update(batch, outputs)
        weight = tf.reduce_sum(tf.cast(example_weights(batch), self._dtype))
        for total, value in zip(self._sums, (*sums, weight, count_examples(batch)), strict=True):
            total.assign_add(tf.cast(value, total.dtype))
        return self._whole_loss.hold(batch, outputs) if isinstance(self._whole_loss, WholeBatch) else None

    # ---- a loss of the whole batch: of the outputs of several batches ----

    def _add_and_hold(self, batches: Any, count: int) -> None:
        for _ in range(count):
            batch = next(batches)
            self._held.append((batch, self._add_one(batch)))
            if len(self._held) == self._together:
                self._add_loss_of_held()

    def _add_loss_of_held(self) -> None:
        if self._held:
            batches, held = ([*each] for each in zip(*self._held, strict=True))
            self._held.clear()
            with self._runtime.assigning(self._own_variables):
                self._add_loss(batches, held)

    @tf.function(autograph=False)
    def _add_loss(self, batches: list[Any], held: list[Any]) -> None:
        self._runtime.strategy.run(self._add_whole_loss, args=(batches, held))

    def _add_whole_loss(self, batches: list[Batch], held: list[Any]) -> None:
        assert isinstance(self._whole_loss, WholeBatch)
        weight, _, loss = self._whole_loss.of_held(batches, held)
        total = self._sums[[*self._means].index("loss")]
        total.assign_add(tf.cast(weight, total.dtype) * tf.cast(loss, total.dtype))

    def _forget(self) -> None:
        self._held.clear()
        with self._runtime.assigning(self._own_variables):
            self._take_sums()
            for collector in self.collectors:
                collector.reset()

    def _take_sums(self) -> list[float]:
        """Return the sums of all batches since the last call, the weight of the examples, and their number."""
        sums: list[float] = self._read().numpy().tolist()
        return sums

    @tf.function(autograph=False)
    def _read(self) -> tf.Tensor:
        """Return the sums over all replicas, and clear them."""
        sums = tf.stack([tf.cast(tf.convert_to_tensor(total), tf.float64) for total in self._sums])
        for total in self._sums:
            total.assign(tf.zeros_like(total))
        return sums


class LossOfSums:
    """Collects the sums of which a loss is made, over a whole split. Create it inside the strategy's scope.

    Args:
        outputs: those of the model for a position.
    """

    names = (LOSS,)
    facts: Mapping[str, Any] = {}

    def __init__(self, loss: OfSums, outputs: int):
        self._loss, self._sums = loss, sum_buffer([loss.count(outputs)], tf.float64)

    @property
    def variables(self) -> list[tf.Variable]:
        return [self._sums]

    def update(self, batch: Batch, outputs: Any) -> None:
        self._sums.assign_add(tf.cast(self._loss.hold(batch, outputs), tf.float64))

    @tf.function(autograph=False)
    def reset(self) -> None:
        self._sums.assign(tf.zeros_like(self._sums))

    def take(self) -> dict[str, float]:
        loss = float(self._read())
        self.reset()
        return {LOSS: loss}

    @tf.function(autograph=False)
    def _read(self) -> tf.Tensor:
        return self._loss.of_sums(tf.convert_to_tensor(self._sums))
