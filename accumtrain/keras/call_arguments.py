"""Arguments of Keras layers: by which signature they come, and as which flat list of tensors a gradient sees them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import keras
import tensorflow as tf

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


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """The mask that Keras carries with a tensor."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Has Keras carry the mask with the tensor, in place. Returns the tensor."""
    tensor._keras_mask = mask
    return tensor


def flatten_with_masks(structure: Any) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Returns the tensors of a structure, then the masks that they carry, and the function that puts such a list back.

    What is no tensor, such as None or a flag, stays in its place. The function sets masks on the tensors it is given.
    """
    leaves = tf.nest.flatten(structure)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor)]
    tensors = [leaves[place] for place in places]
    masked = [number for number, tensor in enumerate(tensors) if mask_of(tensor) is not None]
    masks = [tf.convert_to_tensor(mask_of(tensors[number])) for number in masked]

    def pack(flat: Sequence[tf.Tensor]) -> Any:
        new = dict(zip(places, flat[: len(places)], strict=True))
        for number, mask in zip(masked, flat[len(places) :], strict=True):
            set_mask(flat[number], mask)
        return tf.nest.pack_sequence_as(structure, [new.get(place, leaf) for place, leaf in enumerate(leaves)])

    return [*tensors, *masks], pack
