"""A row of reversible units, of which only the output is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from accumtrain.keras.reversible import Reversible, ReversibleLayer

Pair = tuple[keras.layers.Layer, keras.layers.Layer]


@keras.saving.register_keras_serializable(package="accumtrain")
class ReversibleSequence(ReversibleLayer):
    """Reversible units one after the other (Gomez et al. 2017, arXiv:1707.04585), of which only the output is kept.

    The backward pass computes the input of each unit from its output, so activations do not grow with the number of
    units. Inputs: one tensor [N, ..., 2 C], whose last axis is split into the two streams and joined again at the end,
    or a pair of tensors [N, ..., C]. Output: the same structure and shape, in the dtype of the streams: float32, or
    float64 under the policy float64. Masks and further arguments are as in `Reversible`.

    Args:
        units: pairs (f, g) of Keras layers or models that keep the shape [N, ..., C], or `Reversible` layers. A layer
            may occur several times: its weights are then shared.
        snap_bits: as in `Reversible`.
        memory: `reverse`, or `store`, which keeps all activations: the same function with the same gradient.

    Raises:
        ValueError: a unit is no pair of Keras layers or has another snap_bits; f or g changes the shape of its input;
            the last axis can't be halved.
    """

    def __init__(self, units: Sequence[Pair | Reversible], snap_bits: int = 16, memory: str = "reverse", **kwargs: Any):
        if not units:
            raise ValueError("units=[] holds no unit; give at least one pair (f, g)")
        made = [_unit(place, unit, snap_bits, kwargs.get("dtype")) for place, unit in enumerate(units)]
        layers = [layer for unit in made for layer in (unit.f, unit.g)]
        super().__init__(layers, snap_bits=snap_bits, memory=memory, **kwargs)
        self.units = made

    @property
    def pairs(self) -> list[Pair]:
        return [(unit.f, unit.g) for unit in self.units]

    def get_config(self) -> dict[str, Any]:
        """Each layer once, and for each unit the places of its f and g, so that shared layers stay shared."""
        layers = list({id(layer): layer for pair in self.pairs for layer in pair}.values())
        places = {id(layer): place for place, layer in enumerate(layers)}
        return {
            **super().get_config(),
            "layers": [keras.saving.serialize_keras_object(layer) for layer in layers],
            "units": [[places[id(f)], places[id(g)]] for f, g in self.pairs],
            "memory": self.memory,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ReversibleSequence:
        config = dict(config)
        layers = [keras.saving.deserialize_keras_object(layer) for layer in config.pop("layers")]
        return cls([(layers[f], layers[g]) for f, g in config.pop("units")], **config)


def _unit(place: int, unit: Pair | Reversible, snap_bits: int, dtype: Any) -> Reversible:
    if isinstance(unit, Reversible):
        if unit.snap_bits != snap_bits:
            raise ValueError(
                f"units[{place}].snap_bits={unit.snap_bits}, but the sequence has {snap_bits}, and all streams of a "
                "sequence lie on one grid; give both the same"
            )
        return unit
    if not isinstance(unit, (list, tuple)) or len(unit) != 2:
        raise ValueError(f"units[{place}]={unit!r} is neither a pair (f, g) of Keras layers nor a Reversible")
    return Reversible(*unit, snap_bits=snap_bits, dtype=dtype)
