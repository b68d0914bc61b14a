"""`accumulate(model, steps)`: `fit` gets the effective batch, and the training step of the model splits it.

Below it stands the step itself. The moving statistics of batch normalisation and the metrics that need the outputs of
the whole batch follow.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from accumtrain.console import say
from accumtrain.keras.accumulate_optimizer import (
    accumulates,
    add_gradient,
    check_indices,
    check_summable,
    is_count,
    sum_dtype,
)
from accumtrain.keras.known import Declared, Join, adds_up, refuse_arguments
from accumtrain.keras.replicas import apply_reduced
from accumtrain.keras.split_batch import (
    Split,
    count_examples,
    put_examples,
    run_micro_batches,
    split_evenly,
    tensors_of,
)
from accumtrain.keras.split_loss import BatchLoss, LossShare, join_of_model
from accumtrain.keras.whole_batch import WholeBatchLoss, describe_own_loss
from accumtrain.models.keras.call import (
    StatelessCall,
    call_in_mode,
    find_batch_norms,
    mask_of,
    read_values,
    separate_carried,
)


def accumulate(
    model: keras.Model,
    steps: int | str,
    *,
    loss: str | None = None,
    layer_losses: str | None = None,
    data: Any = None,
    batch_size: int | None = None,
    memory_limit_mb: float | None = None,
    **unknown: Any,
) -> keras.Model:
    """Have `model.fit` compute each batch in `steps` micro-batches, in the memory of one of them.

    docs/batch.md tells whether you need accumulation at all.

    The update is that of the whole batch: gradients, losses, metrics and example weights. `steps` need not divide the
    batch. Keras's own losses and metrics are known. Any other loss is computed for the whole batch, and a printed line
    says so. Each micro-batch is then computed twice, and the outputs of the batch are kept (Gao et al. 2021,
    arXiv:2101.06983). `loss` can declare it a mean or a sum instead. Any other metric is computed from all outputs of
    the batch.

    Batch norm normalises each micro-batch by itself, and its moving statistics become those of the whole batch. Dropout
    is drawn for each micro-batch. Other state that layers change in a call, such as a counter, changes with each. The
    optimizer, and all there is around the step, stay as they are.

    Args:
        model: compiled or not. A model that is saved or cloned is without this change: call `accumulate` again.
        steps: number of micro-batches; a batch with fewer examples has as many as examples. `auto` takes the smallest
            number with which a step fits into memory on this CPU. Child processes try it on a copy of the model, which
            must be compiled.
        loss: the form of your own losses, or of the `compute_loss` of your model, over the examples of a batch. "mean"
            and "sum" are not checked, and save the second pass. "batch" computes all losses for the whole batch, and
            prints no line.
        layer_losses: the same for the losses that your layers give to `add_loss`, if there are any: "mean" or "sum".
        data: for `auto`, what `fit` will get: (x, y), (x, y, sample_weight) or a data set. Some of it is used.
        batch_size: for `auto`, the number of examples in a batch.
        memory_limit_mb: for `auto`, the most that the tensors of a step may take in MiB; None is the memory that is
            free. Weights and optimizer state are included, the data set and batches made in advance are not.

    Returns:
        The same model.

    Raises:
        OutOfMemoryError: with `auto`, not even a micro-batch of 1 fits.
        RuntimeError: with `auto`, a trial failed for another reason than memory.
        ValueError: `steps` is neither `auto` nor a whole number of 1 or more, or another argument is not as above. Or
            the model has a `train_step` of its own. Or, with `auto`, it can't be copied to another process.
    """
    refuse_arguments("accumulate", unknown)
    _check(model, steps, data, batch_size, memory_limit_mb)
    declared = Declared(loss, layer_losses)
    if isinstance(steps, str):
        from accumtrain.keras.auto_steps import choose_steps  # its probes make steps of this module

        steps = choose_steps(model, data, batch_size, memory_limit_mb, declared)
    split_training(model, SplitTrainStep(model, int(steps), declared))
    return model


def split_training(model: keras.Model, step: SplitTrainStep) -> None:
    """Have `fit` and `train_on_batch` of a model make their steps by `step`."""
    model.train_step = step
    model.train_function = None  # made anew by the next fit


def _check(model: keras.Model, steps: Any, *of_auto: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ValueError(f"{model!r} is not a Keras model: give a keras.Model")
    if steps != "auto" and any(value is not None for value in of_auto):
        raise ValueError(f"steps={steps!r}: data, batch_size and memory_limit_mb are for steps='auto'; leave them out")
    if steps != "auto" and not is_count(steps):
        raise ValueError(f"steps={steps!r}: must be a whole number of micro-batches, 1 or more, or 'auto'")
    own = vars(model).get("train_step")
    if type(model).train_step is not keras.Model.train_step or not isinstance(own, SplitTrainStep | None):
        raise ValueError(
            f"{type(model).__name__} has a train_step of its own, which can't be split: fit with the micro-batch and "
            "compile(optimizer=Accumulate(optimizer, steps))"
        )


# --- the step: a loop over micro-batches, then one update -------------------------------------------------------------


class SplitTrainStep:
    """The step in the place of `keras.Model.train_step`: a loop over micro-batches, then one update."""

    def __init__(self, model: keras.Model, steps: int, declared: Declared) -> None:
        self._model, self._steps, self._declared = model, steps, declared
        self._told: Any = self  # the compiled loss for which `_tell` has printed its line; none yet

    @tf.autograph.experimental.do_not_convert
    def __call__(self, data: Any) -> dict[str, tf.Tensor]:
        """Make the update of a batch, (x, y, sample_weight), on this replica. Return the metrics.

        Raises:
            ValueError: the update can't be that of the whole batch, for one of the reasons in docs/keras_details.md.
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
        examples, outputs = count_examples(batch), specs_of_outputs(self._model, batch[0])
        loss = self._build_loss(outputs)
        splits = self.splits(examples, loss)
        sums = BatchSums(self._model, examples, loss, WholeBatchMetrics(self._model, batch, outputs))
        whole = None
        if isinstance(loss, WholeBatchLoss):
            self._tell(examples, outputs)
            whole = loss.of_whole_batch(batch, splits, read_values(sums.state), sums.statistics.before)
        totals, at_outputs = sums.begin(whole), [] if whole is None else whole.at_outputs
        for split in splits:
            totals = run_micro_batches(partial(sums.add, split), (*batch, at_outputs), split, totals)
        return sums.update(totals)

    def splits(self, examples: int | tf.Tensor, loss: LossShare | WholeBatchLoss) -> list[Split]:
        """Return the micro-batches of a batch."""
        return split_evenly(examples, self._steps)

    def _build_loss(self, outputs: Any) -> LossShare | WholeBatchLoss:
        if join_of_model(self._model, outputs, self._declared) is Join.BATCH:
            return WholeBatchLoss(self._model, self._declared)
        return LossShare(self._model, outputs, self._declared)

    def _tell(self, examples: int | tf.Tensor, outputs: Any) -> None:
        """Say once for each compiled loss that it is computed for the whole batch, unless the user asked for it."""
        if self._declared.loss is not None or self._told is self._model._compile_loss:
            return
        self._told = self._model._compile_loss
        say(describe_own_loss(self._model, outputs, examples if isinstance(examples, int) else None))


class BatchSums:
    """Sums over the micro-batches of a batch, and the update made of them.

    Args:
        model: a compiled and built model.
        examples: number of examples of the batch.
        loss: that of the batch, from the losses that the model is compiled with.
        metrics: those that are updated with the whole batch.

    Attributes:
        state: variables that a forward pass or a metric changes, from which the next micro-batch goes on.
        statistics: of batch normalisation, which every micro-batch finds as they are before the batch.
    """

    def __init__(
        self,
        model: keras.Model,
        examples: int | tf.Tensor,
        loss: LossShare | WholeBatchLoss,
        metrics: WholeBatchMetrics,
    ) -> None:
        self._model, self._examples, self._metrics = model, examples, metrics
        self._loss, self.statistics = loss, BatchStatistics(model)
        variables = [*model.non_trainable_variables, *model.metrics_variables]
        # the means of each of several losses
        self._trackers = [] if model._compile_loss is None else model._compile_loss.metrics
        self._tracked = [variable for tracker in self._trackers for variable in tracker.variables] + metrics.variables
        others = {id(variable) for variable in (*self._tracked, *(v for v, _ in self.statistics.before))}
        self.state = [variable for variable in variables if id(variable) not in others]
        # indices of weights with a gradient before the first micro-batch, and of those without any
        self._given: set[int] = set()
        self._assigned: Sequence[tuple[keras.Variable, tf.Tensor]] = ()  # by a loss of the whole batch
        self._missing: set[int] = set()

    def begin(self, whole: BatchLoss | None) -> dict[str, Any]:
        """Return the sums that the loop starts with: nothing, or the loss of the whole batch."""
        weights = [variable.value for variable in self._model.trainable_variables]
        dtype = keras.config.floatx()
        zeros = [tf.zeros(weight.shape, sum_dtype(weight.dtype)) for weight in weights]
        if whole is None:
            nothing = [tf.zeros((), dtype) for _ in self._trackers]
            whole = BatchLoss(tf.zeros((), dtype), nothing, at_outputs=[], at_weights=[None] * len(zeros))
        self._assigned = whole.assigned
        self._given = {index for index, gradient in enumerate(whole.at_weights) if gradient is not None}
        return {
            "gradients": [add_gradient(*pair) for pair in zip(zeros, whole.at_weights, strict=True)],
            "loss": whole.loss,
            "losses": whole.losses,
            "outputs": self._metrics.zeros(self._examples),
            "share": tf.cast(bool(whole.at_outputs), dtype),
            "state": [tf.convert_to_tensor(variable.value) for variable in self.state],
            "statistics": self.statistics.zeros(),
        }

    def add(self, split: Split, number: tf.Tensor, micro_batch: Any, totals: dict[str, Any]) -> dict[str, Any]:
        """Run forward and backward pass of micro-batch `number` of a split. Return the new totals.

        Args:
            micro_batch: x, y, sample_weight and the gradients at the outputs, those of a loss of the whole batch.
        """
        model, dtype = self._model, totals["loss"].dtype
        x, y, sample_weight, at_outputs = micro_batch
        part = tf.cast(split.size, dtype) / tf.cast(self._examples, dtype)
        weights = [tf.convert_to_tensor(variable.value) for variable in model.trainable_variables]
        values = [
            *zip(model.trainable_variables, weights, strict=True),
            *zip(self.state, totals["state"], strict=True),
        ]
        values += [(variable, tf.zeros_like(variable.value)) for variable in self._tracked]
        with StatelessCall([*values, *self.statistics.before]) as call:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                y_pred = call_in_mode(model, x, training=True)
                loss, share = self._loss.of_micro_batch(part, x, y, y_pred, sample_weight)
                scaled = model.optimizer.scale_loss(loss)
            losses = [tf.cast(tracker.result(), dtype) for tracker in self._trackers]
            self._metrics.update_micro_batch(x, y, y_pred, sample_weight)
        refused = "which can't be split here, but by accumtrain.keras.Accumulate as its optimizer"
        call.check_changes(model, model.trainable_variables, refused)
        outputs = tf.nest.flatten(separate_carried(y_pred))[: len(at_outputs)]
        trained = [(output, at) for output, at in zip(outputs, at_outputs, strict=True) if at is not None]
        targets, upstream = zip((scaled, tf.ones_like(scaled)), *trained, strict=True)
        gradients = tape.gradient(targets, weights, output_gradients=upstream)
        self._missing = {index for index, gradient in enumerate(gradients) if gradient is None} - self._given
        return {
            "gradients": [add_gradient(*pair) for pair in zip(totals["gradients"], gradients, strict=True)],
            "loss": totals["loss"] + loss,
            "losses": [
                total + self._loss.counted(value, share) for total, value in zip(totals["losses"], losses, strict=True)
            ],
            "outputs": self._metrics.add(totals["outputs"], y_pred, split.start + number * split.size),
            "share": totals["share"] + share,
            "state": [call.get_current_value(variable) for variable in self.state],
            "statistics": self.statistics.add(totals["statistics"], part, call),
        }

    def update(self, totals: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Make the update of the whole batch. Return the metrics.

        Without examples, as a replica may be at the end of an epoch, the share is 0 and so are loss and gradients.
        """
        model, share = self._model, totals["share"]
        for variable, value in zip(self.state, totals["state"], strict=True):
            variable.assign(value)
        self.statistics.write(totals["statistics"])
        for variable, value in self._assigned:
            variable.assign(value)
        replicas = tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, share.dtype)
        model._loss_tracker.update_state(_mean(totals["loss"], share) * replicas, sample_weight=self._examples)
        known = self._examples if isinstance(self._examples, int) else None  # else each batch counts alike, as in Keras
        for tracker, total in zip(self._trackers, totals["losses"], strict=True):
            tracker.update_state(_mean(total, share), sample_weight=known)
        gradients = [
            None if index in self._missing else tf.cast(_mean(total, share), variable.dtype)
            for index, (total, variable) in enumerate(zip(totals["gradients"], model.trainable_variables, strict=True))
        ]
        if gradients:
            check_indices([index for index, gradient in enumerate(gradients) if gradient is not None])
            apply_reduced(model.optimizer, gradients, model.trainable_variables)
        else:  # as Keras does
            warnings.warn(f"{model.name} has no trainable weight, so nothing is learned", stacklevel=2)
        return self._metrics.update(totals["outputs"])


def _mean(total: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(total, tf.cast(share, total.dtype))


# --- moving statistics of batch normalisation -------------------------------------------------------------------------


class BatchStatistics:
    """The moving statistics of a model's batch normalisations, before a batch.

    Each micro-batch starts from the same moving statistics, and moves them towards its own by a share of 1 - momentum.
    The mean of these moves is the move by the whole batch, but for the variance between micro-batches, which is added.

    Attributes:
        before: each moving statistic with its value, [channels].

    Raises:
        ValueError: one is synchronized between several replicas, which can't meet inside a loop, or has renorm=True.
    """

    def __init__(self, model: keras.Model) -> None:
        self._layers = find_batch_norms(model)
        if renormed := [layer.name for layer in self._layers if getattr(layer, "renorm", False)]:
            raise ValueError(f"{renormed[0]} has renorm=True, which can't be computed in micro-batches: leave it out")
        if tf.distribute.get_strategy().num_replicas_in_sync > 1 and any(layer.synchronized for layer in self._layers):
            raise ValueError(
                "BatchNormalization(synchronized=True) can't be computed in micro-batches on several replicas: leave "
                "synchronized out"
            )
        self._pairs = [read_values((layer.moving_mean, layer.moving_variance)) for layer in self._layers]
        self.before = [pair for pairs in self._pairs for pair in pairs]

    def zeros(self) -> list[Any]:
        """Return the sums to begin with, of each layer: moves of mean and variance, squared moves of the mean."""
        return [[tf.zeros_like(value) for value in (mean, variance, mean)] for (_, mean), (_, variance) in self._pairs]

    def add(self, sums: list[Any], part: tf.Tensor, call: StatelessCall) -> list[Any]:
        """Return the sums with a micro-batch more.

        Args:
            part: its share of the examples.
            call: its forward pass, which holds the statistics it left.

        Raises:
            ValueError: a layer has normalised several batches in one pass, so that its move is not towards one.
        """
        added = []
        for layer, totals, pairs in zip(self._layers, sums, self._pairs, strict=True):
            if (calls := call.assignments[id(layer.moving_mean)]) > 1:
                raise ValueError(
                    f"{layer.name} is called {calls} times in one pass, so its moving variance can't be that of the "
                    "whole batch: take a BatchNormalization for each call, or fit with the micro-batch and "
                    "compile(optimizer=Accumulate(optimizer, steps))"
                )
            mean, variance = (call.get_current_value(variable) - old for variable, old in pairs)
            share = tf.cast(part, mean.dtype)
            moves = (mean, variance, tf.square(mean))
            added.append([total + share * move for total, move in zip(totals, moves, strict=True)])
        return added

    def write(self, sums: list[Any]) -> None:
        """Assign the moving statistics after the whole batch."""
        for layer, (mean, variance, squared_mean), pairs in zip(self._layers, sums, self._pairs, strict=True):
            (_, old_mean), (_, old_variance) = pairs
            between = tf.math.divide_no_nan(squared_mean - tf.square(mean), tf.cast(1.0 - layer.momentum, mean.dtype))
            layer.moving_mean.assign(old_mean + mean)
            layer.moving_variance.assign(old_variance + variance + between)


# --- metrics that need the outputs of the whole batch -----------------------------------------------------------------


class CompiledMetric(NamedTuple):
    """A metric that a model is compiled with.

    Attributes:
        output: the index of the output that it measures, among all.
        weighted: it gets the weights of the examples.
    """

    output: int
    metric: keras.metrics.Metric
    weighted: bool


def compiled_metrics(model: keras.Model) -> list[CompiledMetric]:
    """The metrics of a compiled and built model, in the order in which Keras shows them."""
    compiled = model._compile_metrics
    if compiled is None:
        return []
    return [
        CompiledMetric(index, metric, weighted)
        for weighted, outputs in ((False, compiled._flat_metrics), (True, compiled._flat_weighted_metrics))
        for index, output in enumerate(outputs)
        if output
        for metric in output.metrics
    ]


class WholeBatchMetrics:
    """The metrics of a model. A metric gets the whole batch unless its state adds up over the micro-batches.

    A `compute_metrics` of the model's own gets all outputs of the batch.

    Args:
        batch: x, y and sample_weight, nested tensors [N, ...] or None.
        outputs: specs of the outputs of the model.

    Raises:
        ValueError: an output that has to be kept has a size that is not known before.
    """

    def __init__(self, model: keras.Model, batch: Any, outputs: Any) -> None:
        self._model, (self._x, self._y, self._sample_weight), self._specs = model, batch, outputs
        self._is_own = computes_metrics(model)
        compiled_with = [] if self._is_own else compiled_metrics(model)
        specs = self._flat(outputs) if compiled_with else keras.tree.flatten(outputs)
        self._metrics = [compiled for compiled in compiled_with if not adds_up(compiled.metric, specs[compiled.output])]
        indices = range(len(specs)) if self._is_own else dict.fromkeys(compiled.output for compiled in self._metrics)
        self._outputs = {index: specs[index] for index in indices}
        for index, spec in self._outputs.items():
            if None in spec.shape[1:]:
                raise ValueError(self._refusal(index, "sizes that are not known before"))

    @property
    def variables(self) -> list[keras.Variable]:
        """The state of the metrics that get the whole batch."""
        return [variable for compiled in self._metrics for variable in compiled.metric.variables]

    def zeros(self, examples: int | tf.Tensor) -> list[tf.Tensor]:
        """Return tensors [N, ...] for the outputs that are kept."""
        return [tf.zeros([examples, *output.shape[1:]], output.dtype) for output in self._outputs.values()]

    def update_micro_batch(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
        """Update all metrics with a micro-batch. Changes of `variables` are to be forgotten."""
        if not self._is_own:
            self._model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def add(self, kept: Sequence[tf.Tensor], y_pred: Any, start: tf.Tensor) -> list[tf.Tensor]:
        """Put the outputs of a micro-batch, which begins with example `start`, in their places.

        Raises:
            ValueError: an output has a mask.
        """
        found = keras.tree.flatten(y_pred) if self._is_own else self._flat(y_pred) if self._metrics else []
        for index in self._outputs:
            if mask_of(found[index]) is not None:
                raise ValueError(self._refusal(index, "a mask"))
        return [put_examples(tensor, found[index], start) for index, tensor in zip(self._outputs, kept, strict=True)]

    def update(self, kept: Sequence[tf.Tensor]) -> dict[str, Any]:
        """Update the metrics that get the whole batch. Return the results of all."""
        if self._is_own:
            y_pred = keras.tree.pack_sequence_as(self._specs, kept)
            shown: dict[str, Any] = self._model.compute_metrics(
                self._x, self._y, y_pred, sample_weight=self._sample_weight
            )
            return shown
        outputs = dict(zip(self._outputs, kept, strict=True))
        targets = self._flat(self._y) if self._metrics else []
        weights = [None] if self._sample_weight is None or not self._metrics else self._flat(self._sample_weight)
        for index, metric, weighted in self._metrics:
            weight = weights[index if index < len(weights) else 0] if weighted else None
            metric.update_state(targets[index], outputs[index], sample_weight=weight)
        return self._model.get_metrics_result()

    def _flat(self, structure: Any) -> list[Any]:
        return self._model._compile_metrics._flatten_y(structure)

    def _refusal(self, index: int, reason: str) -> str:
        own = [compiled.metric.name for compiled in self._metrics if compiled.output == index]
        what = f"the metric {own[0]} is not known to add up" if own else "compute_metrics is your own"
        return (
            f"{what}, so it has to see the whole batch, and an output of {self._model.name} has {reason}: take one of "
            "keras.metrics that adds up, or leave it out, and measure with model.evaluate"
        )


def computes_metrics(model: keras.Model) -> bool:
    """Return whether a model has a `compute_metrics` of its own."""
    return getattr(model.compute_metrics, "__func__", None) is not keras.Model.compute_metrics


def specs_of_outputs(model: keras.Model, x: Any) -> Any:
    """Return the outputs of a built model for inputs [N, ...], as KerasTensors [None, ...]."""
    with tf.init_scope():
        return model.compute_output_spec(
            keras.tree.map_structure(lambda tensor: keras.KerasTensor([None, *tensor.shape[1:]], tensor.dtype.name), x)
        )
