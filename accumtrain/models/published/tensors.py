"""The tensors of a published file as the variables of a model, and back: their names, and the forms they have there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from accumtrain.models.published.stored import StoredTensors

Turn = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Form:
    """The difference between an array of the file and that of the variable.

    Attributes:
        to_variable: from the array of the file.
        to_file: back.
    """

    to_variable: Turn
    to_file: Turn


AS_IS = Form(lambda array: array, lambda array: array)
TURNED = Form(np.transpose, np.transpose)  # a kernel is [in, out] here, and [out, in] there
OF_ONE = Form(lambda array: array[0], lambda array: array[np.newaxis])  # there of one example


def of_patches(patch: int, channels: int) -> Form:
    """Return the form of the kernel of patches: here [patch^2 channels, out], there [out, channels, patch, patch]."""
    return Form(
        lambda array: array.transpose(2, 3, 1, 0).reshape(patch * patch * channels, -1),
        lambda array: array.reshape(patch, patch, channels, -1).transpose(3, 2, 0, 1),
    )


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file: its whole name in a model with a head, and its form."""

    name: str
    form: Form = AS_IS


@dataclass
class NamedVariables:
    """Notes the tensor of each variable while layers are built."""

    by_variable: dict[int, Tensor] = field(default_factory=dict)

    def note(self, variable: tf.Variable | None, name: str, form: Form = AS_IS) -> None:
        if variable is not None:
            self.by_variable[id(variable)] = Tensor(name, form)

    def by_path(self, named: Mapping[str, tf.Variable]) -> dict[str, Tensor]:
        """Return the tensor of each path of `named`."""
        return {path: self.by_variable[id(variable)] for path, variable in named.items()}


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of a folder by the path of the variable that each belongs to. Each is read when it is asked for.

    Args:
        tensors: of a model, by path.
        prefix: of the names in a model with a head, which a file may leave out.
    """

    def __init__(self, stored: StoredTensors, tensors: Mapping[str, Tensor], prefix: str):
        found = {path: stored.find_name(tensor.name, prefix) for path, tensor in tensors.items()}
        self._stored, self._tensors = stored, tensors
        self._names = {path: name for path, name in found.items() if name is not None}
        self._others = sorted(stored.shapes.keys() - self._names.values())

    def __getitem__(self, key: str) -> np.ndarray:
        if key in self._names:
            return self._tensors[key].form.to_variable(self._stored.read(self._names[key]))
        return self._stored.read(key)

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from self._others

    def __len__(self) -> int:
        return len(self._names) + len(self._others)
