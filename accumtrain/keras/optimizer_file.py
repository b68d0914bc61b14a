"""State of an optimizer from a file of Keras's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import keras


def read_state(variables: Mapping[str, keras.Variable], store: Any, name: str) -> None:
    """Assigns what a file has to variables of the same names. As Keras's own, it warns and leaves other state out.

    Args:
        store: names and arrays of the file; without any, the saved optimizer was not built.
        name: of the optimizer.
    """
    if not store.keys():
        return
    if set(store.keys()) != set(variables):
        warnings.warn(
            f"Skipping variable loading for optimizer '{name}': the file has {len(store.keys())} variables of another "
            f"optimizer, of other weights or of a loss scale, where it has {len(variables)}. The weights of the model "
            "are loaded.",
            stacklevel=3,
        )
        return
    for each, variable in variables.items():
        variable.assign(store[each])
