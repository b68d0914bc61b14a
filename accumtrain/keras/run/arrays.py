"""Examples as nested arrays: inputs, and targets with the weights of the examples if there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import google_crc32c
import keras
import numpy as np
import tensorflow as tf

from accumtrain.data.source import hash_texts
from accumtrain.errors import ConfigError, DataError

CHECKSUM_CHUNK = 2**20  # values of an array that are summed up at a time
TEXT_KINDS = "SU"  # of numpy.dtype


def as_arrays(model: keras.Model, data: Any, name: str = "data") -> tuple[Any, Any]:
    """Return inputs, and the tuple of targets and weights, as nested arrays [examples, ...] of one length.

    Args:
        data: `(x, y)` or `(x, y, sample_weight)`.
        name: of the data in messages.

    Raises:
        DataError: it is something else, or the arrays do not fit the model or each other.
    """
    if not (isinstance(data, (tuple, list)) and len(data) in (2, 3)):
        raise DataError(f"{name} is a {type(data).__name__}: give (x, y) or (x, y, sample_weight)")
    x, y, *weights = data
    if weights and weights[0] is None:
        weights = []
    # tf.data would take a list for one tensor
    arrays = tf.nest.map_structure(_as_array, keras.tree.lists_to_tuples((x, (y, *weights))))
    if _have_text(arrays[1]):
        raise DataError("the targets are text: number them, as numpy.unique(y, return_inverse=True)[1] does")
    if _have_text(arrays[0]) and not _takes_text(model):
        raise DataError(f"the inputs are text, and {model.name} takes numbers: let it begin with a TextVectorization")
    sizes = {len(array) for array in tf.nest.flatten(arrays)}
    if len(sizes) != 1:
        raise DataError(f"the arrays hold {', '.join(map(str, sorted(sizes)))} examples: give as many of each")
    if sizes == {0}:
        raise DataError(f"the arrays of {name} are empty: leave none without an example")
    return arrays


def weigh_classes(examples: tuple[Any, Any], class_weight: Mapping[int, float] | None) -> tuple[Any, Any]:
    """Return the examples of `as_arrays` with the weight of each by its class, as `model.fit` makes it.

    Args:
        class_weight: weights by the numbers of classes; 1 for those that it lacks. None weighs nothing.

    Raises:
        ConfigError: a value is no weight, the examples have weights already, or the targets are no classes of one
            output.
    """
    if class_weight is None:
        return examples
    told = f"class_weight={class_weight!r}"
    if not isinstance(class_weight, Mapping) or not all(map(_is_weight, class_weight.values())):
        raise ConfigError(f"{told}: must map the numbers of classes to weights of at least 0, as {{0: 1.0, 1: 2.5}}")
    inputs, (targets, *weights) = examples
    if weights:
        raise ConfigError(f"{told}: data has sample_weight, too; multiply it by these weights, and leave them out")
    if not (isinstance(targets, np.ndarray) and targets.ndim in (1, 2)):
        raise ConfigError(
            f"{told}: it is for one output with targets [examples], [examples, 1] or [examples, classes]; leave it "
            "out, and give sample_weight"
        )
    one_hot = targets.ndim == 2 and targets.shape[1] > 1
    classes = np.argmax(targets, axis=-1) if one_hot else np.round(targets.reshape(-1)).astype(int)
    weight = np.ones(len(classes), keras.config.floatx())
    for number, factor in class_weight.items():
        weight[classes == number] = factor
    return inputs, (targets, weight)


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_number and bool(np.isfinite(value)) and value >= 0


def length_of(arrays: Any) -> int:
    """Return the number of examples of nested arrays."""
    return len(tf.nest.flatten(arrays)[0])


def hash_arrays(arrays: Any) -> str:
    """Return a short digest of the content of nested arrays."""
    return hash_texts(f"{array.shape} {array.dtype} {_checksum(array)}" for array in tf.nest.flatten(arrays))


def _checksum(array: np.ndarray) -> int:
    checksum, flat = 0, array.reshape(-1)
    for start in range(0, flat.size, CHECKSUM_CHUNK):
        checksum = google_crc32c.extend(checksum, flat[start : start + CHECKSUM_CHUNK].tobytes())
    return checksum


def _have_text(arrays: Any) -> bool:
    return any(array.dtype.kind in TEXT_KINDS for array in tf.nest.flatten(arrays))


def _takes_text(model: keras.Model) -> bool:
    """Return whether a model has an input of text, or is not a graph of layers and may have one."""
    inputs = getattr(model, "inputs", None)
    return not inputs or any(tensor.dtype == "string" for tensor in inputs)


def _as_array(values: Any) -> np.ndarray:
    array = np.asarray(values)
    for kind in (bytes, str):  # as a tf.data.Dataset gives text
        if array.dtype == object and array.size and all(isinstance(item, kind) for item in array.flat):
            array = array.astype(kind)
    if array.ndim < 1 or array.dtype == object:
        raise DataError(
            f"data holds a {type(values).__name__} where an array [examples, ...] of numbers or text is expected; make "
            "a list of numbers one with numpy.array"
        )
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array
