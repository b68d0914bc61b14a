"""Metrics that need the outputs of the whole batch, as a function with one number for all examples does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.keras.loss_calls import (
    CALL_ERRORS,
    EXAMPLES,
    FUNCTIONS_OVER_BATCHES,
    TOLERANCE,
    Trials,
    is_of_keras,
    made_up_outputs,
    made_up_targets,
)
from accumtrain.models.keras_call import mask_of


@dataclass(frozen=True)
class CompiledMetric:
    """A metric that a model is compiled with.

    Attributes:
        place: of the output that it measures, among all.
        weighted: it gets the weights of the examples.
    """

    place: int
    metric: keras.metrics.Metric
    weighted: bool


def compiled_metrics(model: keras.Model) -> list[CompiledMetric]:
    """The metrics of a compiled and built model, in the order in which Keras shows them."""
    metrics = model._compile_metrics
    if metrics is None:
        return []
    lists = [
        (place, each, weighted)
        for weighted, found in ((False, metrics._flat_metrics), (True, metrics._flat_weighted_metrics))
        for place, each in enumerate(found)
    ]
    return [CompiledMetric(place, each, weighted) for place, of, weighted in lists if of for each in of.metrics]


class WholeBatchMetrics:
    """Those of a model's metrics whose state after a batch is another than after its micro-batches.

    Only metrics that may be so are tried, with made-up examples.

    Args:
        batch: x, y and sample_weight, nested tensors [N, ...] or None.
        trials: of metrics.

    Raises:
        ValueError: one measures an output whose size is not known before.
    """

    def __init__(self, model: keras.Model, batch: Any, trials: Trials) -> None:
        self._model, (x, self._y, self._sample_weight) = model, batch
        own = [each for each in compiled_metrics(model) if _may_join_examples(each.metric)]
        outputs = self._flat(_output_specs(model, x)) if own else []
        self._metrics = [each for each in own if not self._adds_up(each, outputs[each.place], trials)]
        self._outputs = {each.place: outputs[each.place] for each in self._metrics}
        for each in self._metrics:
            if None in outputs[each.place].shape[1:]:
                raise ValueError(
                    f"the metric {each.metric.name} has to see the whole batch, and its output has sizes that are not "
                    "known before: return one value for each example, or make it a keras.metrics.Metric that adds up"
                )

    @property
    def names(self) -> list[str]:
        """The names of these metrics."""
        return [each.metric.name for each in self._metrics]

    @property
    def variables(self) -> list[keras.Variable]:
        """The state of these metrics."""
        return [variable for each in self._metrics for variable in each.metric.variables]

    def zeros(self, examples: int | tf.Tensor) -> list[tf.Tensor]:
        """For each output that they measure, tensors [N, ...] to begin with."""
        return [tf.zeros([examples, *like.shape[1:]], like.dtype) for like in self._outputs.values()]

    def add(self, kept: Sequence[tf.Tensor], y_pred: Any, start: tf.Tensor) -> list[tf.Tensor]:
        """Puts the outputs of a micro-batch, which begins with example `start`, in their places.

        Raises:
            ValueError: an output has a mask.
        """
        found = self._flat(y_pred) if self._metrics else []
        for each in self._metrics:
            if mask_of(found[each.place]) is not None:
                raise ValueError(
                    f"the metric {each.metric.name} has to see the whole batch, and its output has a mask: return one "
                    "value for each example, or make it a keras.metrics.Metric that adds up"
                )
        return [
            tf.tensor_scatter_nd_update(all_kept, _rows(start, found[place]), tf.cast(found[place], all_kept.dtype))
            for place, all_kept in zip(self._outputs, kept, strict=True)
        ]

    def update(self, kept: Sequence[tf.Tensor]) -> None:
        """Updates the metrics with the whole batch."""
        if not self._metrics:
            return
        outputs, targets = dict(zip(self._outputs, kept, strict=True)), self._flat(self._y)
        weights = [None] if self._sample_weight is None else self._flat(self._sample_weight)
        for each in self._metrics:
            weight = weights[each.place if each.place < len(weights) else 0] if each.weighted else None
            each.metric.update_state(targets[each.place], outputs[each.place], sample_weight=weight)

    def _flat(self, structure: Any) -> list[Any]:
        return self._model._compile_metrics._flatten_y(structure)

    def _adds_up(self, each: CompiledMetric, output: Any, trials: Trials) -> bool:
        target = self._flat(self._y)[each.place]
        return trials.result(each.metric, (target, output), partial(_adds_up, each.metric, target, output))


def _may_join_examples(metric: keras.metrics.Metric) -> bool:
    """Whether a metric is the user's own, or of a function that may have one number for all examples."""
    function = getattr(metric, "_fn", None)
    if isinstance(function, keras.losses.Loss) or any(function is each for each in FUNCTIONS_OVER_BATCHES):
        return True
    return not (is_of_keras(type(metric)) and (function is None or is_of_keras(function)))


def _adds_up(metric: keras.metrics.Metric, target: Any, output: Any) -> bool:
    """Whether the state after made-up examples is that after two parts of them."""

    def state_after(*parts: slice) -> list[np.ndarray]:
        with keras.StatelessScope() as scope:
            metric.reset_state()
            for part in parts:
                metric.update_state(targets[part], outputs[part])
        return [np.asarray(scope.get_current_value(variable)) for variable in metric.variables]

    with tf.init_scope():
        random = np.random.default_rng(0)
        outputs, targets = made_up_outputs(output, random), made_up_targets(target, random)
        try:
            whole, parts = state_after(slice(None)), state_after(slice(1), slice(1, EXAMPLES))
        except CALL_ERRORS:  # it takes no such examples, and those of the batch may be alike
            return False
    return all(np.allclose(*pair, rtol=TOLERANCE, atol=TOLERANCE) for pair in zip(whole, parts, strict=True))


def _output_specs(model: keras.Model, x: Any) -> Any:
    """Shapes and dtypes of what a model returns."""
    with tf.init_scope():
        return model.compute_output_spec(
            keras.tree.map_structure(lambda each: keras.KerasTensor([None, *each.shape[1:]], each.dtype.name), x)
        )


def _rows(start: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.range(start, start + tf.shape(values)[0])[:, tf.newaxis]
