"""Keras's own losses and metrics, known by identity, and the user's declaration of all others.

A loss is the mean of the losses of its examples, or their sum, or it needs the whole batch. A few examples do not show
which: with a rare class, a later batch or another axis it may be another one. So it is known, declared, or computed for
the whole batch. A subclass, or a function that calls one of Keras's, is the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import keras

from accumtrain.config.compiled import OR_SAY
from accumtrain.keras.linear_cross_entropy import output_as_loss

EXAMPLES, LAST, ALL = 0, -1, None  # the axis along which a function reduces by default
# Functions of keras.losses, with their default axis. Those that keras.metrics has, too, have the same one.
FUNCTIONS: Mapping[str, int | None] = {
    "binary_crossentropy": LAST,
    "binary_focal_crossentropy": LAST,
    "categorical_crossentropy": LAST,
    "categorical_focal_crossentropy": LAST,
    "categorical_generalized_cross_entropy": LAST,
    "categorical_hinge": LAST,
    "circle": EXAMPLES,
    "cosine_similarity": LAST,
    "ctc": LAST,
    "dice": ALL,
    "hinge": LAST,
    "huber": LAST,
    "kl_divergence": LAST,
    "log_cosh": LAST,
    "mean_absolute_error": LAST,
    "mean_absolute_percentage_error": LAST,
    "mean_squared_error": LAST,
    "mean_squared_logarithmic_error": LAST,
    "poisson": LAST,
    "sparse_categorical_crossentropy": LAST,
    "squared_hinge": LAST,
    "tversky": ALL,
}
METRIC_FUNCTIONS: Mapping[str, int | None] = {
    **FUNCTIONS,
    "binary_accuracy": LAST,
    "categorical_accuracy": LAST,
    "concordance_correlation": LAST,
    "pearson_correlation": LAST,
    "sparse_categorical_accuracy": LAST,
    "sparse_top_k_categorical_accuracy": LAST,
    "top_k_categorical_accuracy": LAST,
}
# classes of keras.metrics whose state is a sum over examples
METRICS = (
    *("Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy"),
    *("SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy", "ConcordanceCorrelation", "PearsonCorrelation"),
    *("BinaryCrossentropy", "CategoricalCrossentropy", "KLDivergence", "Poisson", "SparseCategoricalCrossentropy"),
    *("CategoricalHinge", "Hinge", "SquaredHinge", "CosineSimilarity", "LogCoshError", "MeanAbsoluteError"),
    *("MeanAbsolutePercentageError", "MeanSquaredError", "MeanSquaredLogarithmicError", "RootMeanSquaredError"),
    *("AUC", "FalseNegatives", "FalsePositives", "Precision", "PrecisionAtRecall", "Recall", "RecallAtPrecision"),
    *("SensitivityAtSpecificity", "SpecificityAtSensitivity", "TrueNegatives", "TruePositives"),
    *("F1Score", "FBetaScore", "R2Score", "Mean", "Sum"),
)
METRICS_OF_CLASSES = ("BinaryIoU", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU")  # along their `axis`
# keras.losses and keras.metrics wrap functions in them
LOSS_OF_FUNCTION: type[keras.losses.Loss] = keras.losses.MeanSquaredError.__base__
MEAN_OF_FUNCTION = keras.metrics.MeanMetricWrapper
REGULARIZERS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)  # sums over all values
MEANS_OF_ACTIVITY = (3, 14)  # the version of Keras from which an activity regularizer is divided by the examples


class Join(Enum):
    """The way in which micro-batches make the loss of their batch; BATCH: they do not."""

    MEAN = "mean"
    SUM = "sum"
    BATCH = "batch"


# --- the user's declaration -------------------------------------------------------------------------------------------

MEANINGS = {
    "loss": {
        "mean": "the mean of the losses of its examples",
        "sum": "their sum",
        "batch": "one that needs the whole batch",
    },
    "layer_losses": {"mean": "means over the examples", "sum": "sums over them"},
}


@dataclass(frozen=True)
class Declared:
    """The user's declaration of losses that are not known; None where there is none.

    Attributes:
        loss: how the losses join that the model is compiled with, or its `compute_loss`; "batch" is for all of them.
        layer_losses: how those of `add_loss` join.

    Raises:
        ValueError: a word is not one of those that there are.
    """

    loss: str | None = None
    layer_losses: str | None = None

    def __post_init__(self) -> None:
        for name, meanings in MEANINGS.items():
            word = getattr(self, name)
            if word is not None and word not in meanings:
                *others, last = (f'"{known}" for {meaning}' for known, meaning in meanings.items())
                raise ValueError(f"{name}={word!r}: say {', '.join(others)} or {last}, or leave it out")

    @property
    def join(self) -> Join:
        """The join of a loss that is not known."""
        return Join.BATCH if self.loss is None else Join(self.loss)

    @property
    def or_say(self) -> str:
        """The end of a message to a user who did not ask for the whole batch."""
        return OR_SAY if self.loss is None else ""


def refuse_arguments(function: str, unknown: Mapping[str, Any]) -> None:
    """Raise TypeError if there is an argument that a function does not have, with the word that took its place."""
    for name in unknown:
        if name == "whole_batch":
            raise TypeError(
                f'{function} has no argument whole_batch any more: say loss="batch"; a loss of your own is computed '
                "for the whole batch without it, too"
            )
        raise TypeError(f"{function} got an unexpected keyword argument {name!r}")


# --- losses -----------------------------------------------------------------------------------------------------------


def join_of(loss: keras.losses.Loss, output: Any, declared: Declared) -> Join:
    """Return how a loss that a model is compiled with joins.

    Args:
        output: specs of the outputs that it takes, with an axis of examples.
    """
    if not is_known(loss, output):
        return declared.join
    return Join.SUM if loss.reduction == "sum" else Join.MEAN


def is_known(loss: keras.losses.Loss, output: Any) -> bool:
    """Return whether a loss is Keras's own or `output_as_loss`, with values of examples that depend on them alone."""
    if type(loss) is LOSS_OF_FUNCTION and loss.fn is output_as_loss:
        return True
    return is_of_keras(loss) and _keeps_examples(keras.losses, FUNCTIONS, loss.fn, loss._fn_kwargs, output)


def is_of_keras(loss: keras.losses.Loss) -> bool:
    """Return whether a loss is one of Keras's own, though perhaps one of the whole batch."""
    wrapped = type(loss) is LOSS_OF_FUNCTION or _is_public(type(loss), keras.losses)
    own_call = "call" in vars(loss) or type(loss).call is not LOSS_OF_FUNCTION.call
    return wrapped and not own_call and _default_axis(keras.losses, FUNCTIONS, loss.fn) is not _UNKNOWN


_UNKNOWN = object()


def _default_axis(module: Any, functions: Mapping[str, int | None], function: Any) -> Any:
    """Return the axis along which a known function reduces by default, or _UNKNOWN."""
    known = (axis for name, axis in functions.items() if function is getattr(module, name, module))
    return next(known, _UNKNOWN)


def _keeps_examples(
    module: Any, functions: Mapping[str, int | None], function: Any, arguments: Mapping[str, Any], output: Any
) -> bool:
    """Return whether a function is known, and not along the axis of examples."""
    axis = _default_axis(module, functions, function)
    return axis is not _UNKNOWN and not _joins_examples(arguments.get("axis", axis), output)


def _joins_examples(axis: Any, output: Any) -> bool:
    """Return whether a reduction along an axis, or several, of outputs [N, ...] joins examples."""
    axes = keras.tree.flatten(axis)
    ranks = [len(leaf.shape) for leaf in keras.tree.flatten(output)]
    return axis is ALL or any(each + rank * (each < 0) == EXAMPLES for each in axes for rank in ranks)


def _is_public(kind: type, module: Any) -> bool:
    return getattr(module, kind.__name__, None) is kind


# --- losses of layers -------------------------------------------------------------------------------------------------


def join_of_layer(layer: keras.layers.Layer) -> Join | None:
    """Return how the losses join that a layer adds; None if they may be the user's own.

    Keras's own layers add that of their activity regularizer alone.
    """
    if not _is_public(type(layer), keras.layers) or type(layer.activity_regularizer) not in REGULARIZERS:
        return None
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    return Join.MEAN if version >= MEANS_OF_ACTIVITY else Join.SUM


# --- metrics ----------------------------------------------------------------------------------------------------------


def adds_up(metric: keras.metrics.Metric, output: Any) -> bool:
    """Return whether the state of a metric after a batch is known to be that after its micro-batches."""
    kind, name = type(metric), type(metric).__name__
    if "update_state" in vars(metric):
        return False
    arguments = getattr(metric, "_fn_kwargs", {})
    if kind is MEAN_OF_FUNCTION:
        return any(
            _keeps_examples(module, functions, metric._fn, arguments, output)
            for module, functions in ((keras.metrics, METRIC_FUNCTIONS), (keras.losses, FUNCTIONS))
        )
    if not _is_public(kind, keras.metrics):
        return False
    if name in METRICS_OF_CLASSES:
        return not _joins_examples(metric.axis, output)
    return name in METRICS and not _joins_examples(arguments.get("axis", LAST), output)
