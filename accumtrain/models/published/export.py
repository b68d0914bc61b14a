"""The tensors of a model, by their names in a published file."""

from __future__ import annotations

import numpy as np

from accumtrain.models.published.build import PublishedModel


def export_arrays(model: PublishedModel) -> dict[str, np.ndarray]:
    """Return the tensors that a file of the model holds, by name, in the form that they have there."""
    return {
        tensor.name: np.ascontiguousarray(tensor.form.to_file(model.named[path].numpy()))
        for path, tensor in model.tensors.items()
    }
