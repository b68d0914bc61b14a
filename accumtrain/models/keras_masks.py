"""The masks that Keras carries with tensors, as attributes of them.

New tensors of the same values, as a custom gradient makes them, have lost their masks. So masks go there beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


class Masked(NamedTuple):
    """A structure of tensors, and the masks of some of them by their places in it."""

    tensors: Any
    masks: dict[int, tf.Tensor]


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """The mask that Keras carries with a tensor, if there is one."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Has Keras carry the mask with the tensor, in place. Returns the tensor."""
    tensor._keras_mask = mask
    return tensor


def separate_masks(structure: Any) -> Any:
    """The structure as Masked, or as it is where no tensor has a mask."""
    found = {place: mask_of(tensor) for place, tensor in enumerate(tf.nest.flatten(structure))}
    masks = {place: mask for place, mask in found.items() if mask is not None}
    return Masked(structure, masks) if masks else structure


def join_masks(structure: Any) -> Any:
    """What `separate_masks` was given. The masks are set on the tensors, in place."""
    if not isinstance(structure, Masked):
        return structure
    tensors = tf.nest.flatten(structure.tensors)
    for place, mask in structure.masks.items():
        set_mask(tensors[place], mask)
    return structure.tensors


def flatten_with_masks(structure: Any) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Returns the tensors of a structure, then the masks that they carry, and the function that puts such a list back.

    What is no tensor, such as None or a flag, stays in its place. The function sets masks on what it is given, and
    keeps none of the structure's own.
    """
    leaves = tf.nest.flatten(structure)
    places = [place for place, leaf in enumerate(leaves) if tf.is_tensor(leaf)]
    tensors = [tf.convert_to_tensor(leaves[place]) for place in places]
    masked = [number for number, tensor in enumerate(tensors) if mask_of(tensor) is not None]
    masks = [tf.convert_to_tensor(mask_of(tensors[number])) for number in masked]
    template = tf.nest.map_structure(lambda leaf: None if tf.is_tensor(leaf) else leaf, structure)

    def pack(flat: Sequence[tf.Tensor]) -> Any:
        new = dict(zip(places, flat[: len(places)], strict=True))
        for number, mask in zip(masked, flat[len(places) :], strict=True):
            set_mask(flat[number], mask)
        rest = enumerate(tf.nest.flatten(template))
        return tf.nest.pack_sequence_as(template, [new.get(place, leaf) for place, leaf in rest])

    return [*tensors, *masks], pack
