"""The arrays that a published model gives back: by the names and in the forms of its file."""

from __future__ import annotations

import numpy as np

from accumtrain.models.published.build import PublishedModel


def export_arrays(model: PublishedModel) -> dict[str, np.ndarray]:
    """Return the array of each variable by the whole name of its tensor, in the form and order of the file."""
    named = model.named
    return {
        tensor.name: np.ascontiguousarray(tensor.form.to_file(named[path].numpy()))
        for path, tensor in model.tensors.items()
    }
