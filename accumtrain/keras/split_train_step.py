"""The training step of a Keras model in micro-batches: a loop over them, then one update."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import tensorflow as tf

from accumtrain.keras.accumulate import accumulates
from accumtrain.keras.accumulate_arguments import check_places, check_summable
from accumtrain.keras.batch_statistics import BatchStatistics
from accumtrain.keras.buffers import add_gradient, sum_dtype
from accumtrain.keras.loss_calls import Trials
from accumtrain.keras.loss_share import LossShare, LossTerms
from accumtrain.keras.loss_trial import LossTrial
from accumtrain.keras.replicas import apply_reduced
from accumtrain.keras.split_batch import Split, batch_size, splits, take, tensors_of
from accumtrain.keras.whole_batch_metrics import WholeBatchMetrics
from accumtrain.models.keras_call import StatelessCall, call_in_mode


class SplitTrainStep:
    """Takes the place of `keras.Model.train_step`: a loop over micro-batches, then one update.

    Attributes:
        terms: of the loss; None before it was tried on real examples.
    """

    def __init__(self, model: keras.Model, steps: int) -> None:
        self._model, self._steps, self._trials = model, steps, Trials()
        self.terms: LossTerms | None = None

    def try_loss(self, data: Any) -> None:
        """Finds the terms of the loss with examples of a batch, (x, y, sample_weight), of each replica in turn.

        Raises:
            ValueError: see `LossTrial.terms`.
        """
        results = self._model.distribute_strategy.experimental_local_results
        for replica in range(len(results(keras.tree.flatten(data)[0]))):
            of_replica = keras.tree.map_structure(lambda value, place=replica: results(value)[place], data)
            batch = keras.utils.unpack_x_y_sample_weight(tensors_of(of_replica))
            examples = int(batch_size(batch))
            if examples and not (self.terms and self.terms.settled):
                self._model._symbolic_build(data_batch=of_replica)
                share = LossShare(self._model, self._trials)
                self.terms = LossTrial(self._model, batch, -(-examples // self._steps), share).terms(self.terms)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, data: Any) -> dict[str, tf.Tensor]:
        """Makes the update of a batch, (x, y, sample_weight), on this replica. Returns the metrics.

        Raises:
            ValueError: the update can't be that of the whole batch, for one of the reasons in docs/keras.md.
        """
        if accumulates(self._model.optimizer):
            raise ValueError(
                f"the optimizer {self._model.optimizer.name} accumulates by itself: compile the model with the "
                "optimizer alone, or leave accumulate(model) out"
            )
        check_summable(self._model.trainable_variables)
        with tf.init_scope():  # in a loop nothing can be built any more
            self._model._symbolic_build(data_batch=data)
        batch = keras.utils.unpack_x_y_sample_weight(tensors_of(data))
        examples = batch_size(batch)
        share = LossShare(self._model, self._trials, self.terms)
        sums = BatchSums(self._model, examples, share, WholeBatchMetrics(self._model, batch, self._trials))
        totals = sums.zeros()
        for split in self.splits(examples):

            def body(number: tf.Tensor, totals: Any, split: Split = split) -> tuple[tf.Tensor, Any]:
                start = split.start + number * split.size
                return number + 1, sums.add(totals, *take(batch, split, number), start=start, size=split.size)

            count = tf.convert_to_tensor(split.count)
            with tf.control_dependencies(keras.tree.flatten(totals)):  # the second loop would begin beside the first
                start = tf.identity(0)
            # parallel iterations would hold the activations of several micro-batches
            _, totals = tf.while_loop(lambda number, _: number < count, body, (start, totals), parallel_iterations=1)  # noqa: B023
        return sums.update(totals)

    def splits(self, examples: int | tf.Tensor) -> list[Split]:
        """The micro-batches of a batch."""
        return splits(examples, self._steps)


class BatchSums:
    """Sums over the micro-batches of a batch, and the update made of them.

    Args:
        model: a compiled and built model.
        examples: number of examples of the batch.
        share: of the losses that the model is compiled with.
        metrics: those that are updated with the whole batch.
    """

    def __init__(
        self, model: keras.Model, examples: int | tf.Tensor, share: LossShare, metrics: WholeBatchMetrics
    ) -> None:
        self._model, self._examples, self._metrics = model, examples, metrics
        self._share, self._statistics = share, BatchStatistics(model)
        # what a forward pass and the metrics change; the next micro-batch goes on from there
        variables = [*model.non_trainable_variables, *model.metrics_variables]
        self._trackers = (
            [] if model._compile_loss is None else model._compile_loss.metrics
        )  # if there are several losses
        self._tracked = [variable for tracker in self._trackers for variable in tracker.variables] + metrics.variables
        others = {id(variable) for variable in (*self._tracked, *(each for each, _ in self._statistics.before))}
        self._state = [variable for variable in variables if id(variable) not in others]
        self._missing: set[int] = set()  # places of weights without a gradient

    def zeros(self) -> dict[str, Any]:
        """What the loop starts with."""
        weights = [variable.value for variable in self._model.trainable_variables]
        dtype = keras.config.floatx()
        return {
            "gradients": [tf.zeros(weight.shape, sum_dtype(weight.dtype)) for weight in weights],
            "loss": tf.zeros((), dtype),
            "losses": [tf.zeros((), dtype) for _ in self._trackers],
            "outputs": self._metrics.zeros(self._examples),
            "share": tf.zeros((), dtype),
            "state": [tf.convert_to_tensor(variable.value) for variable in self._state],
            "statistics": self._statistics.zeros(),
        }

    def add(
        self, totals: dict[str, Any], x: Any, y: Any, sample_weight: Any, *, start: tf.Tensor, size: int | tf.Tensor
    ) -> dict[str, Any]:
        """Runs forward and backward pass of a micro-batch that begins with example `start`. Returns the new totals."""
        model, dtype = self._model, totals["loss"].dtype
        part = tf.cast(size, dtype) / tf.cast(self._examples, dtype)
        weights = [tf.convert_to_tensor(variable.value) for variable in model.trainable_variables]
        with StatelessCall(self._given(weights, totals["state"])) as call:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                y_pred = call_in_mode(model, x, training=True)
                with self._share.watched() as calls:
                    loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
                share = self._share.of(part, y_pred, sample_weight, calls)
                loss = self._share.joined(tf.cast(loss, dtype), part, share)
                scaled = model.optimizer.scale_loss(loss)
            losses = [tf.cast(tracker.result(), dtype) for tracker in self._trackers]
            shown = model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            if more := shown.keys() - model.get_metrics_result().keys():
                raise ValueError(
                    f"compute_metrics of {model.name} returns {', '.join(sorted(more))}, which no metric of the model "
                    "keeps over micro-batches: make it a keras.metrics.Metric"
                )
        call.check_changes(model, model.trainable_variables, "which can't be split")
        gradients = tape.gradient(scaled, weights)
        self._missing = {place for place, gradient in enumerate(gradients) if gradient is None}
        return {
            "gradients": [add_gradient(*pair) for pair in zip(totals["gradients"], gradients, strict=True)],
            "loss": totals["loss"] + loss,
            "losses": [
                total + self._share.counted(value, share) for total, value in zip(totals["losses"], losses, strict=True)
            ],
            "outputs": self._metrics.add(totals["outputs"], y_pred, start),
            "share": totals["share"] + share,
            "state": [call.get_current_value(variable) for variable in self._state],
            "statistics": self._statistics.add(totals["statistics"], part, call),
        }

    def update(self, totals: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Makes the update of the whole batch. Returns the metrics.

        Without examples, as a replica may be at the end of an epoch, the share is 0 and so are loss and gradients.
        """
        model, share = self._model, totals["share"]
        for variable, value in zip(self._state, totals["state"], strict=True):
            variable.assign(value)
        self._statistics.write(totals["statistics"])
        self._metrics.update(totals["outputs"])
        replicas = tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, share.dtype)
        model._loss_tracker.update_state(_mean(totals["loss"], share) * replicas, sample_weight=self._examples)
        known = self._examples if isinstance(self._examples, int) else None  # else each batch counts alike, as in Keras
        for tracker, total in zip(self._trackers, totals["losses"], strict=True):
            tracker.update_state(_mean(total, share), sample_weight=known)
        gradients = [
            None if place in self._missing else tf.cast(_mean(total, share), variable.dtype)
            for place, (total, variable) in enumerate(zip(totals["gradients"], model.trainable_variables, strict=True))
        ]
        if gradients:
            check_places([place for place, each in enumerate(gradients) if each is not None])
            apply_reduced(model.optimizer, gradients, model.trainable_variables)
        else:  # as Keras does
            warnings.warn(f"{model.name} has no trainable weight, so nothing is learned", stacklevel=2)
        return model.get_metrics_result()

    def _given(self, weights: list[tf.Tensor], state: list[tf.Tensor]) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Each variable with its value in a pass."""
        pairs = [*zip(self._model.trainable_variables, weights, strict=True), *zip(self._state, state, strict=True)]
        unused = [(variable, tf.zeros_like(variable.value)) for variable in self._tracked]
        return pairs + unused + self._statistics.before


def _mean(total: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(total, tf.cast(share, total.dtype))
