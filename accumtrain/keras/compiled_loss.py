"""Loss and metrics that a Keras model is compiled with, as the engine computes them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from accumtrain.console import warn
from accumtrain.engine.loss import PerExample, SplitMetrics
from accumtrain.errors import ConfigError
from accumtrain.keras.compiled import EXAMPLES_TRACED, Compiled, config_errors
from accumtrain.keras.loss_calls import Trials, watched
from accumtrain.keras.loss_share import LossShare, has_own_loss
from accumtrain.keras.loss_trial import LossTrial
from accumtrain.keras.whole_batch_metrics import CompiledMetric, WholeBatchMetrics, compiled_metrics
from accumtrain.kinds.compiled import running
from accumtrain.kinds.losses import LossConfig

MEANS = ("mean", "sum_over_batch_size")
EXAMPLES_TRIED, TRIED_AT_ONCE = 64, 8
RESERVED = (  # names in records and results
    *("loss", "examples", "seconds", "learning_rate", "grad_norm", "loss_scale", "skipped", "step", "epoch", "split"),
    *("finite", "state_finite", "stop", "exact", "compared", "in_range", "examples_per_second"),
)


def build_loss(config: LossConfig) -> PerExample:
    """A function of targets and outputs: the compiled loss of the micro-batch, as the loss of each of its examples."""
    compiled = running()

    def loss(targets: Any, outputs: Any) -> tf.Tensor:
        y_pred, penalty = _split(compiled, outputs)
        y, *weights = targets
        with keras.StatelessScope():  # several losses keep means of each, which nobody reads here
            value = compiled.model._compile_loss(y, y_pred, weights[0] if weights else None)
        return tf.fill(tf.shape(tf.nest.flatten(y)[0])[:1], tf.cast(value, penalty.dtype) + penalty)

    return loss


def build_metrics(config: LossConfig) -> dict[str, PerExample]:
    """The compiled metrics that are means over examples, by name."""
    compiled = running()
    return {name: partial(_metric, compiled, name) for name in metric_names(compiled)}


def _metric(compiled: Compiled, name: str, targets: Any, outputs: Any) -> tf.Tensor:
    """A metric that is a mean over examples: its value for each of them, float [N]."""
    found, metrics = _means(compiled.model)[name], compiled.model._compile_metrics
    each = found.metric
    y_pred, _ = _split(compiled, outputs)
    of_output = (metrics._flatten_y(tensors)[found.place] for tensors in (targets[0], y_pred))
    values = tf.convert_to_tensor(each._fn(*of_output, **each._fn_kwargs))
    return tf.reduce_mean(tf.reshape(tf.cast(values, each.dtype), [tf.shape(values)[0], -1]), axis=1)


def metric_names(compiled: Compiled) -> list[str]:
    """The names of the compiled metrics that are means over examples.

    Raises:
        ConfigError: a name is one of the engine's, or a metric is no single number.
    """
    model = compiled.model
    if taken := [name for name in _all(model) if name in RESERVED]:
        raise ConfigError(f"a metric is named {taken[0]}, as accumtrain names something else: give it another name")
    results = model._compile_metrics.result() if _all(model) else {}
    for name, value in results.items():
        if isinstance(value, Mapping) or len(value.shape):
            raise ConfigError(f"the metric {name} is no single number: choose an average, such as average='macro'")
    return [name for name in _means(model) if _has_one_for_each(compiled, name)]


def _has_one_for_each(compiled: Compiled, name: str) -> bool:
    """Whether the function of a metric has a value for each example, not one for all."""
    found, metrics = _means(compiled.model)[name], compiled.model._compile_metrics

    def values(y: Any, y_pred: Any) -> Any:
        of_output = (metrics._flatten_y(tensors)[found.place] for tensors in (y, y_pred))
        return tf.convert_to_tensor(found.metric._fn(*of_output, **found.metric._fn_kwargs))

    traced = tf.function(values, autograph=False).get_concrete_function(compiled.targets[0], compiled.traced.outputs)
    shape = traced.structured_outputs.shape
    return bool(shape.rank) and shape[0] == EXAMPLES_TRACED


def build_split_metrics(config: LossConfig) -> SplitMetrics | None:
    """The compiled metrics that are no means over examples, such as AUC; None if there are none."""
    compiled = running()
    means = metric_names(compiled)
    others = [name for name in _all(compiled.model) if name not in means]
    return CompiledMetrics(compiled, others) if others else None


class CompiledMetrics:
    """The compiled metrics `names`, over a whole split."""

    def __init__(self, compiled: Compiled, names: list[str]):
        self.names, self._compiled, self._metrics = names, compiled, compiled.model._compile_metrics

    def update(self, labels: Any, logits: Any) -> None:
        y_pred, _ = _split(self._compiled, logits)
        self._metrics.update_state(labels[0], y_pred, *labels[1:])

    def take(self) -> dict[str, float]:
        results = self._metrics.result()
        self._metrics.reset_state()
        return {name: float(results[name]) for name in self.names}


def check_losses(compiled: Compiled) -> None:
    """Raises ConfigError if the loss of a batch is not the mean of those of its micro-batches."""
    losses = [each.loss for each in compiled.model._compile_loss._flat_losses]
    for loss in losses:
        if loss.reduction not in MEANS and (compiled.weighted or loss.reduction != "mean_with_sample_weight"):
            raise ConfigError(
                f"the loss {loss.name} has reduction={loss.reduction!r}, so that of a batch is no mean over its "
                "examples: give it reduction='sum_over_batch_size', or use accumtrain.keras.accumulate and model.fit"
            )

    def values(targets: Any, outputs: Any) -> Any:
        return compiled.model._compile_loss(targets[0], outputs, *targets[1:])

    with config_errors():
        with watched(losses, Trials()) as calls:
            tf.function(values, autograph=False).get_concrete_function(compiled.targets, compiled.traced.outputs)
        calls.check(divided=compiled.weighted)
    if calls.masks:
        raise ConfigError(
            "a loss leaves some targets out, as ignore_class does, so that of a batch is no mean over its examples: "
            "use accumtrain.keras.accumulate and model.fit"
        )
    if compiled.traced.penalised or has_own_loss(compiled.model):
        _check_terms(compiled)


def check_metrics(compiled: Compiled) -> None:
    """Raises ConfigError if a metric can't be shown, or depends on how a split is cut into batches."""
    y, *weights = compiled.targets
    batch = (compiled.inputs, y, weights[0] if weights else None)
    with config_errors():
        joining = WholeBatchMetrics(compiled.model, batch, Trials()).names
    means = metric_names(compiled)
    if names := [name for name in joining if name not in means]:
        raise ConfigError(
            f"the metric {names[0]} gives one number for a batch that is not made of those of its parts, so its value "
            "for a split depends on the size of the batches: return one value for each example, or make it a "
            "keras.metrics.Metric that adds up, such as RootMeanSquaredError"
        )


def _check_terms(compiled: Compiled) -> None:
    """Raises ConfigError if the loss of real examples has a term that is no mean over them."""
    model, split = compiled.model, compiled.data.train
    count = min(split.size, EXAMPLES_TRIED)
    inputs, (targets, *weights) = split.read(tf.cast(tf.linspace(0, split.size - 1, count), tf.int64))
    batch = (inputs, targets, weights[0] if weights else None)
    with config_errors():
        terms = LossTrial(model, batch, min(count, TRIED_AT_ONCE), LossShare(model, Trials())).terms(None)
    if "sum" in terms.of_layers:
        raise ConfigError(
            f"add_loss, call {terms.of_layers.index('sum') + 1} in {model.name}, is a sum over the examples of a "
            "batch, as an activity_regularizer is before Keras 3.14: give it their mean, or use "
            "accumtrain.keras.accumulate and model.fit, where a sum is exact"
        )
    if not terms.settled:
        warn(
            f"a term of the loss of {model.name} is 0 for the {count} examples that were tried, and counts as a mean "
            "over the examples: accumtrain.keras.accumulate and model.fit try it with each batch until it is not 0"
        )


def _split(compiled: Compiled, outputs: Any) -> tuple[Any, tf.Tensor]:
    """The model's outputs, and the losses of its layers and weights."""
    return outputs if compiled.traced.penalised else (outputs, tf.zeros((), keras.config.floatx()))


def _all(model: keras.Model) -> dict[str, CompiledMetric]:
    """The compiled metrics by the names that Keras shows."""
    metrics = model._compile_metrics
    return {} if metrics is None else dict(zip(metrics.result(), compiled_metrics(model), strict=True))


def _means(model: keras.Model) -> dict[str, CompiledMetric]:
    return {name: each for name, each in _all(model).items() if not each.weighted and _wraps(each.metric)}


def _wraps(metric: keras.metrics.Metric) -> bool:
    """Whether a metric is the mean of a function of each example."""
    kind, mean = type(metric), keras.metrics.MeanMetricWrapper
    return issubclass(kind, mean) and (kind.update_state, kind.result) == (mean.update_state, mean.result)
