"""The arrays that a published model gives back, without adapters: these are merged into the kernels of their layers."""

from __future__ import annotations

import numpy as np

from accumtrain.models.published.build import PublishedModel


def export_arrays(model: PublishedModel) -> dict[str, np.ndarray]:
    """Return the array of each variable by the whole name of its tensor, in the form of the file."""
    tensors = model.tensors
    return {
        tensors[path].name: np.ascontiguousarray(tensors[path].form.to_file(array))
        for path, array in merge_adapters(model).items()
    }


def merge_adapters(model: PublishedModel) -> dict[str, np.ndarray]:
    """Return the array of each variable by its path, as the same model without adapters has them."""
    layers, added = {id(layer.kernel): layer for layer in model.adapted}, model.added
    return {
        path: layers[id(variable)].merge() if id(variable) in layers else np.array(variable)
        for path, variable in model.named.items()
        if path not in added
    }
