"""The weights in a file of Keras: .keras, .weights.h5, and the .h5 files of earlier versions. No code in it is run."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
from keras.src.utils.naming import to_snake_case

from accumtrain.errors import CheckpointError, first_line

WEIGHTS = "model.weights.h5"  # in a .keras file
SEED = "seed_generator"  # part of the key of what is no weight
OPTIMIZER = "optimizer"  # group of a file that holds a training, too


def read_keras_file(file: Path, model: keras.Model) -> dict[str, np.ndarray]:
    """The arrays of a file: by the path of the variable of `model` they belong to, others by their key in the file.

    Raises:
        CheckpointError: the file is damaged or of another kind.
    """
    try:
        with zipfile.ZipFile(file) if zipfile.is_zipfile(file) else _plain(file) as opened:
            source = io.BytesIO(opened.read(WEIGHTS)) if isinstance(opened, zipfile.ZipFile) else opened
            with h5py.File(source, "r") as content:
                whole = content.get("model_weights", content)
                arrays = dict(_arrays(whole))
                keys = _legacy_keys(whole, model) if "layer_names" in whole.attrs else _keys(model)
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        reason = first_line(error)
        raise CheckpointError(
            f"model.weights={file} can't be read as a file of Keras weights: {reason}; give a .keras, .weights.h5 or "
            ".h5 file, or a run"
        ) from error
    return {keys.get(key, key): array for key, array in arrays.items()}


def _plain(file: Path) -> Any:
    return file.open("rb")


def _arrays(content: h5py.Group) -> Iterator[tuple[str, np.ndarray]]:
    """Every array by its key; not those of the optimizer and of seed generators."""
    found: list[tuple[str, np.ndarray]] = []

    def visit(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not key.startswith(OPTIMIZER) and SEED not in key:
            found.append((key, np.asarray(item)))

    content.visititems(visit)
    yield from found


def _own(layer: keras.Layer) -> Mapping[str, keras.Variable]:
    """The variables of a layer by the keys under which it saves them."""
    store: dict[str, keras.Variable] = {}
    layer.save_own_variables(store)
    return store


def _keys(model: keras.Model) -> dict[str, str]:
    """Key in the file -> path of the variable. Layers are numbered by class, in the order of the model."""
    numbers: dict[str, int] = {}
    keys: dict[str, str] = {}
    for layer in model.layers:
        kind = to_snake_case(type(layer).__name__)
        numbers[kind] = numbers.get(kind, -1) + 1
        name = f"{kind}_{numbers[kind]}" if numbers[kind] else kind
        keys |= {f"layers/{name}/vars/{key}": variable.path for key, variable in _own(layer).items()}
    return keys


def _legacy_keys(content: h5py.Group, model: keras.Model) -> dict[str, str]:
    """Does what `_keys` does, for files that name their layers; the variables of a layer stand in the same order."""
    keys: dict[str, str] = {}
    for layer in model.layers:
        group = content.get(layer.name)
        if group is not None and "weight_names" in group.attrs:
            names = [name if isinstance(name, str) else name.decode() for name in group.attrs["weight_names"]]
            keys |= {f"{layer.name}/{name}": each.path for name, each in zip(names, _own(layer).values(), strict=False)}
    return keys
