"""The arrays that a published model gives back: by the names and in the forms of its file."""

from __future__ import annotations

import numpy as np

from accumtrain.models.published.build import PublishedModel


def export_arrays(model: PublishedModel) -> dict[str, np.ndarray]:
    """Return the array of each variable by the whole name of its tensor, in the form of the file.

    Adapters are merged into the kernels of their layers.
    """
    merged, added = {id(layer.kernel): layer for layer in model.adapted}, model.added
    arrays = {}
    for path, variable in model.named.items():
        if path not in added:
            tensor, layer = model.tensors[path], merged.get(id(variable))
            array = variable.numpy() if layer is None else layer.merge()
            arrays[tensor.name] = np.ascontiguousarray(tensor.form.to_file(array))
    return arrays
