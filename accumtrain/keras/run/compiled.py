"""A compiled Keras model in the engine: its layers, loss, metrics and optimizer, and the examples it learns from.

`CompiledModel` lives in this process, or is read again in a child of it. config/compiled.py names the functions
`build_*` and `open_given`, which make the parts of a run of it.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.compiled import OF_BATCHES, OF_EXAMPLES, CompiledModelConfig, running
from accumtrain.data.config import DataConfig
from accumtrain.data.source import Split, Stream
from accumtrain.engine.losses import Batch, Collector, PerExample
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import NOISE
from accumtrain.keras.accumulate_optimizer import accumulates, check_summable
from accumtrain.keras.accumulate_step import CompiledMetric, compiled_metrics
from accumtrain.keras.known import Declared, Join
from accumtrain.keras.run.examples import GivenData, InMemorySplit, examples_of, given_data
from accumtrain.keras.run.model_copy import read_model, write_model
from accumtrain.keras.split_loss import LossShare, join_of_model, losses_of_layers
from accumtrain.keras.whole_batch import LossCall
from accumtrain.models.keras.call import (
    StatelessCall,
    call_in_mode,
    call_stateless,
    find_batch_norms,
    join_carried,
    mask_of,
    read_values,
)
from accumtrain.models.keras.model import KerasModel
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.keras_optimizer import WeightView
from accumtrain.optim.optimizer import Optimizer, Parameter
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.tasks.config import LossConfig, LossEntry
from accumtrain.tasks.objective import Objective

EXAMPLES = "examples.pickle"  # in a folder for child processes
EXAMPLES_TRACED = 7  # unlikely to be the size of anything else
MOST_EXAMPLES = 1024  # that a child gets
TERMINAL_STYLE = re.compile(r"\x1b\[\d*m")  # in Keras's messages
MEANS = ("mean", "sum_over_batch_size")
RESERVED = (  # names in records and results
    *("loss", "examples", "seconds", "learning_rate", "grad_norm", "loss_scale", "skipped", "step", "epoch", "split"),
    *("finite", "state_finite", "stop", "exact", "compared", "in_range", "examples_per_second"),
    *NOISE,
)


class CompiledModel:
    """A built and compiled model, and its data.

    Args:
        data: examples of inputs, as the model takes them, and of targets: a tuple of what the loss takes and,
            optionally, the weight of the example.

    Attributes:
        inputs: the first example, several times.
        targets: those of `inputs`.
        moving: the batch normalisations whose moving statistics a forward pass in training changes.
        penalised: layers or weights have losses of their own.
        outputs: specs of the outputs for `inputs`.

    Raises:
        DataError: the model or the loss does not take it.
        ConfigError: all weights are frozen, one is of a float8 layer, or the outputs have masks.
    """

    def __init__(self, model: keras.Model, data: GivenData):
        self.model, self.data = model, data
        first = examples_of(data.train, 1)
        self.inputs, self.targets = tf.nest.map_structure(lambda each: tf.repeat(each[:1], EXAMPLES_TRACED, 0), first)
        with _data_errors(model):
            model._symbolic_build(data_batch=(self.inputs, *self.targets))
        if not model.trainable_variables:
            raise ConfigError(
                f"all weights of {model.name} are frozen: set trainable=True for a layer, and compile again"
            )
        with config_errors():
            check_summable(model.trainable_variables)
        self.weighted = any(len(examples_of(split, 1)[1]) > 1 for split in data.splits.values())
        self._before: list[tuple[keras.Variable, np.ndarray]] = []
        self.moving, self.penalised, self.outputs = self._trace()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Set the model and its optimizer back at the end, and at each `reset` within this context."""
        variables = (*self.model.variables, *self.model.optimizer.variables)
        self._before = [(variable, variable.numpy()) for variable in variables]
        try:
            yield
        finally:
            self.reset()

    def reset(self) -> None:
        """Set the model and its optimizer to what they were when `unchanged` was entered, if it was."""
        for variable, value in self._before:
            variable.assign(value)

    def _trace(self) -> tuple[Sequence[keras.layers.BatchNormalization], bool, Any]:
        changed: list[int] = []
        penalised: list[bool] = []

        def call(x: Any) -> Any:
            state = [tf.convert_to_tensor(variable.value) for variable in self.model.non_trainable_variables]
            y, new_state, losses = call_stateless(self.model, state, x, training=True)
            changed.extend(
                id(variable)
                for variable, before, after in zip(self.model.non_trainable_variables, state, new_state, strict=True)
                if after is not before
            )
            penalised.append(isinstance(losses, tf.Tensor))
            if any(mask_of(output) is not None for output in tf.nest.flatten(y)):
                raise ConfigError(
                    f"the outputs of {self.model.name} have masks, and a masked loss is not a mean over examples: use "
                    "accumtrain.keras.accumulate and model.fit"
                )
            return y

        with _data_errors(self.model):
            outputs = tf.function(call, autograph=False).get_concrete_function(self.inputs).structured_outputs
        moving = [layer for layer in find_batch_norms(self.model) if id(layer.moving_mean) in changed]
        return moving, penalised[-1], outputs


@contextmanager
def config_errors(remedy: str = "") -> Iterator[None]:
    """Turn a ValueError about the model into ConfigError, with one more remedy."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{error}{remedy}") from error


@contextmanager
def _data_errors(model: keras.Model) -> Iterator[None]:
    """Turn the errors of Keras while it builds or traces a model into DataError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RuntimeError, tf.errors.InvalidArgumentError) as error:
        reason = TERMINAL_STYLE.sub("", str(error))
        raise DataError(f"{model.name} or its loss does not take the data: {reason}") from error


def open_given(config: DataConfig, seed: int) -> GivenData:
    data: GivenData = running().data
    return data


# --- for child processes ----------------------------------------------------------------------------------------------


@contextmanager
def write_compiled(compiled: CompiledModel) -> Iterator[Path]:
    """Yield a folder from which `read_compiled` makes the model again, with some of the examples.

    Raises:
        ConfigError: Keras can't save the model.
    """
    with temporary_folder("model") as folder:
        with config_errors("\nOr give `steps` as a number: nothing is tried out then"):
            write_model(compiled.model, folder)
        examples = {name: _read_some(compiled.data, split) for name, split in compiled.data.splits.items()}
        (folder / EXAMPLES).write_bytes(pickle.dumps(examples))
        yield folder


def read_compiled(folder: Path) -> CompiledModel:
    """Return the model that `write_compiled` has written."""
    examples = pickle.loads((folder / EXAMPLES).read_bytes())
    splits = {name: InMemorySplit(*arrays) for name, arrays in examples.items()}
    return CompiledModel(read_model(folder), given_data(splits["train"], splits["val"]))


def _read_some(data: GivenData, split: Split) -> Any:
    """Return examples of a split as arrays; of a stream no more than an update takes, as an example may be large."""
    count = min(data.batch_size, MOST_EXAMPLES) if isinstance(split, Stream) else MOST_EXAMPLES
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), examples_of(split, count))


# --- model ------------------------------------------------------------------------------------------------------------


def build_model(config: CompiledModelConfig, spec: ModelSpec) -> Model:
    """Return the model with its own variables, so their values at this moment are the initial weights.

    Its output is that of the Keras model. If layers or weights have losses, it is a pair of that and the sum of these.

    Raises:
        ConfigError: it can't be recomputed, or changes variables in a forward pass that are no statistics.
    """
    compiled = running()
    compiled.reset()
    return KerasModel(
        config,
        compiled.model,
        spec.variable_dtype,
        moving=compiled.moving,
        penalised=compiled.penalised,
        joins_loss=True,
        carries=True,
    )


# --- loss and metrics -------------------------------------------------------------------------------------------------


def build_loss(config: LossConfig) -> PerExample:
    """Return a function of targets and outputs: the loss of the micro-batch, as that of each of its examples."""
    of_batch = build_batch_loss(config)
    return lambda targets, outputs: tf.fill(tf.shape(tf.nest.flatten(targets)[0])[:1], of_batch(targets, outputs))


def build_batch_loss(config: LossConfig) -> Callable[[Any, Any], tf.Tensor]:
    """Return a function of targets and outputs: the loss of these examples, a scalar."""
    compiled = running()

    def loss(targets: Any, outputs: Any) -> tf.Tensor:
        y_pred, penalty = _split(compiled, outputs)
        y, *weights = targets
        # several losses keep a mean of each; the engine does not read these
        means = [variable for metric in compiled.model._compile_loss.metrics for variable in metric.variables]
        with StatelessCall(read_values(means)) as call:
            value = compiled.model._compile_loss(y, y_pred, weights[0] if weights else None)
        with config_errors():
            call.check_changes(compiled.model, (), "in its loss, which a run can't keep")
        return tf.cast(value, penalty.dtype) + penalty

    return loss


class CompiledObjective(Objective):
    """The metrics of the compiled model. Its program uses the outputs itself, so there is no report about them."""

    @property
    def means(self) -> dict[str, PerExample]:
        """The compiled metrics that are means over examples, by name."""
        compiled = running()
        return {name: partial(_metric, compiled, mean) for name, mean in means_by_name(compiled).items()}

    def collectors(self, split: str, batch: int, replicas: int, *, reports: bool) -> list[Collector]:
        """Return the compiled metrics that are no means over examples, such as AUC."""
        compiled = running()
        means = means_by_name(compiled)
        others = [name for name in _metrics_by_name(compiled.model) if name not in means]
        return [CompiledMetrics(compiled, others)] if others else []


def _metric(compiled: CompiledModel, mean: CompiledMetric, targets: Any, outputs: Any) -> tf.Tensor:
    """Return the values of a metric that is a mean over examples, one for each, float [N]."""
    y_pred, _ = _split(compiled, outputs)
    values = _call_mean(compiled.model, mean, targets[0], y_pred)
    return tf.reduce_mean(tf.reshape(tf.cast(values, mean.metric.dtype), [tf.shape(values)[0], -1]), axis=1)


def _call_mean(model: keras.Model, mean: CompiledMetric, y: Any, y_pred: Any) -> tf.Tensor:
    """Call the function of a metric that is a mean with the targets and the outputs that it measures."""
    of_output = (model._compile_metrics._flatten_y(tensors)[mean.output] for tensors in (y, y_pred))
    return tf.convert_to_tensor(mean.metric._fn(*of_output, **mean.metric._fn_kwargs))


def means_by_name(compiled: CompiledModel) -> dict[str, CompiledMetric]:
    """Return the compiled metrics that are the mean of a function of each example.

    Raises:
        ConfigError: a name is one of the engine's, or a metric is no single number.
    """
    metrics = _metrics_by_name(compiled.model)
    if taken := [name for name in metrics if name in RESERVED]:
        raise ConfigError(f"a metric is named {taken[0]}, a name that accumtrain uses itself: give it another one")
    results = compiled.model._compile_metrics.result() if metrics else {}
    for name, value in results.items():
        if isinstance(value, Mapping) or len(value.shape):
            raise ConfigError(f"the metric {name} is not a single number: choose an average, such as average='macro'")
    mean = keras.metrics.MeanMetricWrapper

    def is_mean(kind: type[keras.metrics.Metric]) -> bool:
        return issubclass(kind, mean) and (kind.update_state, kind.result) == (mean.update_state, mean.result)

    return {
        name: entry
        for name, entry in metrics.items()
        if not entry.weighted and is_mean(type(entry.metric)) and _has_one_for_each(compiled, entry)
    }


def _has_one_for_each(compiled: CompiledModel, mean: CompiledMetric) -> bool:
    """Return whether the function of a metric has a value for each example, not one for all."""
    values = tf.function(partial(_call_mean, compiled.model, mean), autograph=False)
    traced = values.get_concrete_function(compiled.targets[0], compiled.outputs)
    shape = traced.structured_outputs.shape
    return bool(shape.rank) and shape[0] == EXAMPLES_TRACED


class CompiledMetrics:
    """The compiled metrics `names`, over a whole split."""

    facts: Mapping[str, Any] = {}

    def __init__(self, compiled: CompiledModel, names: list[str]):
        self.names, self._compiled, self._metrics = names, compiled, compiled.model._compile_metrics

    @property
    def variables(self) -> list[tf.Variable]:
        return [variable.value for metric in self._metrics.metrics for variable in metric.variables]

    def reset(self) -> None:
        self._metrics.reset_state()

    def update(self, batch: Batch, outputs: Any) -> None:
        labels, (y_pred, _) = batch["targets"], _split(self._compiled, outputs)
        self._metrics.update_state(labels[0], y_pred, *labels[1:])

    def take(self) -> dict[str, float]:
        results = self._metrics.result()
        self.reset()
        return {name: float(results[name]) for name in self.names}


def choose_loss(compiled: CompiledModel, declared: Declared) -> LossEntry:
    """Return the entry of the loss: that of examples where it is known or declared to be a mean, else of the batch.

    Raises:
        ConfigError: it is not a mean over examples, and has to be.
    """
    model, outputs = compiled.model, compiled.outputs
    if compiled.penalised:
        _check_losses_of_layers(compiled, declared)
    of_batch = join_of_model(model, outputs, declared) is Join.BATCH

    def values(targets: Any, outputs: Any) -> Any:
        with LossCall() as call:
            value = model._compile_loss(targets[0], outputs, *targets[1:])
        if of_batch:
            call.check_layers(model, declared)
        return value

    def trace() -> None:
        tf.function(values, autograph=False).get_concrete_function(compiled.targets, outputs)

    with config_errors():
        if of_batch:
            trace()
            return OF_BATCHES
        if declared.loss == Join.SUM.value:
            raise ConfigError(
                'loss="sum": a run has means over examples alone, so give the loss their mean; or say loss="batch", or '
                "use accumtrain.keras.accumulate and model.fit, where a sum is exact"
            )
        with LossShare(model, outputs, declared).record_calls() as calls:
            trace()
    for loss in calls.losses:
        if loss.reduction not in MEANS and (compiled.weighted or loss.reduction != "mean_with_sample_weight"):
            raise ConfigError(
                f"the loss {loss.name} has reduction={loss.reduction!r}, so that of a batch is not a mean over its "
                "examples: give it reduction='sum_over_batch_size', or say loss=\"batch\""
            )
    if calls.one_number and compiled.weighted:
        raise ConfigError(
            f"the loss {calls.one_number[0].name} gives one number for a micro-batch, so that weights of examples do "
            'not act on it: return one value for each example, or say loss="batch"'
        )
    if calls.masks:
        raise ConfigError(
            "a loss leaves some targets out, as ignore_class does, so that of a batch is not a mean over its examples: "
            'say loss="batch"'
        )
    return OF_EXAMPLES


def _check_losses_of_layers(compiled: CompiledModel, declared: Declared) -> None:
    """Raise ConfigError if layers add losses that are not known or declared to be means over the examples."""
    model = compiled.model

    def call(x: Any) -> None:
        with StatelessCall(read_values(model.variables)):
            call_in_mode(model, x, training=True)
            joins.extend(join for _, join in losses_of_layers(model, declared))

    joins: list[Join] = []
    with config_errors():
        tf.function(call, autograph=False).get_concrete_function(compiled.inputs)
    if Join.SUM in joins:
        raise ConfigError(
            f"a layer of {model.name} adds a loss that is a sum over the examples of a batch, as an "
            "activity_regularizer is before Keras 3.14: give it their mean, or use accumtrain.keras.accumulate and "
            "model.fit, where a sum is exact"
        )


def check_metrics(compiled: CompiledModel) -> None:
    """Raise ConfigError if a metric can't be shown, or has one number for each batch of a split."""
    means = means_by_name(compiled)
    for name, entry in _metrics_by_name(compiled.model).items():
        of_function = isinstance(entry.metric, keras.metrics.MeanMetricWrapper)
        if name not in means and of_function and not _has_one_for_each(compiled, entry):
            raise ConfigError(
                f"the metric {name} gives one number for a batch that is not made of those of its parts, so its value "
                "for a split depends on the size of the batches: return one value for each example, or make it a "
                "keras.metrics.Metric that adds up, such as RootMeanSquaredError"
            )


def _split(compiled: CompiledModel, outputs: Any) -> tuple[Any, tf.Tensor]:
    """Return the model's outputs, and the losses of its layers and weights."""
    y_pred, penalty = outputs if compiled.penalised else (outputs, tf.zeros((), keras.config.floatx()))
    return join_carried(y_pred), penalty


def _metrics_by_name(model: keras.Model) -> dict[str, CompiledMetric]:
    """Return the compiled metrics by the names that Keras shows."""
    metrics = model._compile_metrics
    return {} if metrics is None else dict(zip(metrics.result(), compiled_metrics(model), strict=True))


# --- optimizer --------------------------------------------------------------------------------------------------------


class CompiledOptimizer(Optimizer):
    """A Keras optimizer on one device: its own `apply`, once per update, with all that is part of it.

    The object itself makes the updates of its model, so its counter and its state go on from where they are. For other
    variables, as job=verify has them, a new one of the same configuration does.
    """

    skips_missing = True

    def __init__(self, model: keras.Model):
        super().__init__(None, 0.0)
        # hidden from tf.Module, which would find the weights through the optimizer
        self._of_model = lambda: (inner_optimizer(model), model.trainable_variables)

    def build(self, variables: Sequence[tf.Variable], decayed: Sequence[bool]) -> None:
        """Raise TypeError if a variable is neither float32 nor float64."""
        optimizer, own = self._of_model()
        if [id(variable.value) for variable in own] != [id(variable) for variable in variables]:
            optimizer = type(optimizer).from_config(optimizer.get_config())
            own = [WeightView(Parameter(variable, decayed=False)) for variable in variables]
        self._of_model = lambda: (optimizer, own)
        super().build(variables, decayed)

    def build_slots(self) -> None:
        optimizer, own = self._of_model()
        if not optimizer.built:
            optimizer.build(own)
        self.slots = [variable.value for variable in optimizer.variables]

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        optimizer, _ = self._of_model()
        return tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float32)

    @tf.autograph.experimental.do_not_convert
    def apply(
        self, gradients: Sequence[tf.Tensor | None], rate: tf.Tensor, step: tf.Tensor, scale: tf.Tensor | float = 1.0
    ) -> None:
        """Make an update. `rate` and `step` are the optimizer's own."""
        optimizer, own = self._of_model()
        scaled = [None if d is None else d * tf.cast(scale, d.dtype) for d in gradients]
        optimizer.apply_gradients(zip(scaled, own, strict=True))  # as Keras's own fit does


def build_optimizer(**arguments: Any) -> Optimizer:
    """Return the optimizer of the compiled model. The arguments of every optimizer are part of it already."""
    return CompiledOptimizer(running().model)


def inner_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """Return the compiled optimizer without its loss scale, for which the engine has its own.

    Raises:
        ConfigError: it accumulates or scales the loss by itself.
    """
    optimizer = model.optimizer
    if accumulates(optimizer):
        raise ConfigError(
            f"the optimizer {optimizer.name} accumulates by itself, as accumtrain.fit does: compile the model with the "
            "optimizer alone, and give fit the whole batch_size"
        )
    inner = optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer
    if inner.loss_scale_factor:
        raise ConfigError(
            f"the optimizer {inner.name} has loss_scale_factor={inner.loss_scale_factor}, and accumtrain scales the "
            "loss itself where the precision needs it: leave it out"
        )
    return inner
