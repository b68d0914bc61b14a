"""What a compiled Keras model is, as values that YAML can hold. A run that is continued must have the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from accumtrain.data.fingerprint import digest

PLAIN = (int, float, str, bool, type(None))  # what YAML can hold
OF_LOSSES = vars(keras.losses.Loss()).keys()  # attributes of every loss


def layers_digest(model: keras.Model) -> str:
    """A digest of the layers' configurations, and of the shapes of the weights. Names are no part of it."""
    layers = [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
    configurations = [f"{type(layer).__name__} {_without_names(_config(layer))}" for layer in layers]
    weights = [f"{tuple(variable.shape)} {variable.dtype} {variable.trainable}" for variable in model.variables]
    return digest([*configurations, *weights])


def optimizer_arguments(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The configuration of an optimizer, without its name."""
    config = _config(optimizer) or {"learning_rate": type(optimizer._learning_rate).__name__}
    return {key: value for key, value in config.items() if key != "name"}


def loss_text(compiled: Any) -> str:
    """A loss of `CompileLoss` with its arguments and its weight, without the name, which Keras numbers."""
    loss = compiled.loss
    own = {key: value for key, value in vars(loss).items() if key not in OF_LOSSES or key == "reduction"}
    values = {**own, **getattr(loss, "_fn_kwargs", {})}
    shown = [f"{key}={_plain(value)}" for key, value in values.items()]
    function = getattr(loss, "fn", None)
    weight = 1.0 if compiled.loss_weights is None else compiled.loss_weights
    return f"{getattr(function, '__name__', type(loss).__name__)}({', '.join(shown)}) x {weight}"


def _config(described: Any) -> dict[str, Any]:
    """What `get_config` returns; nothing if an object, or a part of it, has none."""
    try:
        return _plain(described.get_config())
    except NotImplementedError:
        return {}


def _plain(value: Any) -> Any:
    """A value that YAML can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, PLAIN) else type(value).__name__


def _without_names(value: Any) -> Any:
    """A configuration without names and numbers of objects, which count on in a program."""
    if isinstance(value, Mapping):
        return {key: _without_names(each) for key, each in value.items() if key not in ("name", "shared_object_id")}
    return [_without_names(each) for each in value] if isinstance(value, list) else value
