"""The arguments that the call of a Keras layer takes, and a call that takes the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

import keras

TRAINING = inspect.Parameter("training", inspect.Parameter.KEYWORD_ONLY, default=None)
POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def parameters_of(layer: keras.layers.Layer) -> dict[str, inspect.Parameter]:
    """The parameters of the layer's call, by their names."""
    return dict(inspect.signature(layer.call).parameters)


def required_arguments(layer: keras.layers.Layer) -> int:
    """How many tensors the layer's call takes at least: 1, or 2 of keras.layers.MultiHeadAttention."""
    parameters = parameters_of(layer).values()
    return max(1, sum(each.kind in POSITIONAL and each.default is each.empty for each in parameters))


def with_parameters(call: Callable, parameters: Iterable[inspect.Parameter]) -> Callable:
    """Returns `call` with these parameters and `training`, by which Keras hands masks and the training mode to a layer.

    Of several parameters with one name the first counts. Keras reads them in the layer's __init__.
    """
    by_name: dict[str, inspect.Parameter] = {}
    for parameter in (*parameters, TRAINING):
        by_name.setdefault(parameter.name, parameter)
    signed: Any = partial(call)
    signed.__signature__ = inspect.Signature(sorted(by_name.values(), key=attrgetter("kind")))
    return signed
