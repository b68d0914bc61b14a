"""Puts arrays in the place of a model's initial values, variable by variable, and tells what went where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from accumtrain.backprop.model import Model


@dataclass(frozen=True)
class Started:
    """`loaded`: paths with their array. `left`: path -> why it has its initial value. `unused`: what else there was."""

    loaded: list[str]
    left: dict[str, str]
    unused: list[str]


def start_from(model: Model, arrays: Mapping[str, np.ndarray]) -> Started:
    """Assigns every array to the variable of its path. A layer with a variable of another shape is left as it is."""
    reasons, odd = {}, defaultdict(list)
    for path, variable in model.named.items():
        if path not in arrays:
            reasons[path] = "not in the file"
        elif tuple(arrays[path].shape) != tuple(variable.shape):
            reasons[path] = f"{_shape(arrays[path].shape)} there, {_shape(variable.shape)} here"
            odd[_layer(path)].append(path.rpartition("/")[2])
    loaded, left = [], {}
    for path, variable in model.named.items():
        if path in reasons:
            left[path] = reasons[path]
        elif _layer(path) in odd:
            left[path] = f"its layer's {odd[_layer(path)][0]} has another shape"
        else:
            variable.assign(arrays[path].astype(variable.dtype.as_numpy_dtype))
            loaded.append(path)
    return Started(loaded, left, sorted(arrays.keys() - model.named.keys()))


def _layer(path: str) -> str:
    return path.rpartition("/")[0]


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
