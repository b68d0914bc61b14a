"""The keys and tensors of a folder of published weights, as NumPy reads them for the reference of job=verify."""

from __future__ import annotations

import json
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - with it NumPy reads bfloat16
import numpy as np

from accumtrain.errors import ConfigError, DataError, first_line

_AGAIN = "give the whole folder, as transformers' save_pretrained writes it"


class ReferenceKeys:
    """The keys of a config.json. A key that is not there has the value that transformers gives it.

    Raises:
        DataError: The file is missing, can't be read or is no mapping.
    """

    def __init__(self, file: Path):
        self._file = file
        self._keys = _read_mapping(file)

    def get(self, key: str, default: Any) -> Any:
        return self._keys.get(key, default)

    def get_known(self, key: str, default: Any, known: Collection[Any]) -> Any:
        """Return a value that must be among the known ones.

        Raises:
            ConfigError: It is another one.
        """
        value = self._keys.get(key, default)
        if value not in [*known]:
            which = ", ".join(map(json.dumps, known))
            raise ConfigError(
                f"{self._file} has {key}={json.dumps(value)}, which the reference of job=verify does not know: give a "
                f"model that has {which if len(known) == 1 else f'one of {which}'}"
            )
        return value


class ReferenceTensors:
    """The tensors of a folder by name: of model.safetensors, or of the files in its index.

    Each is read when it is asked for. Old names of normalisations, gamma and beta, become weight and bias.

    Raises:
        ConfigError: The library safetensors is not installed.
        DataError: A file is missing or can't be read.
    """

    def __init__(self, folder: Path):
        if find_spec("safetensors") is None:
            raise ConfigError(f"{folder} needs the library safetensors: pip install 'accumtrain[pretrained]'")
        self._folder = folder
        self._places: dict[str, tuple[Path, str]] = {}
        for file in _list_files(folder):
            with _open(file) as opened:
                names = opened.keys()
            self._places |= {_rename(name): (file, name) for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def has_prefix(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self._places)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor in float64."""
        return self._read(name).astype(np.float64)

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return rows of a tensor in float64."""
        return self._read(name)[rows].astype(np.float64)

    def _read(self, name: str) -> np.ndarray:
        if name not in self._places:
            raise DataError(f"{self._folder} has no tensor {name}, which its model has: {_AGAIN}")
        file, stored = self._places[name]
        with _open(file) as opened:
            tensor: np.ndarray = opened.get_tensor(stored)
        return tensor


def _list_files(folder: Path) -> list[Path]:
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole]
    names = set(_read_mapping(index).get("weight_map", {}).values())
    if foreign := sorted(name for name in names if Path(name).name != name):
        raise DataError(f"{index} names {foreign[0]}, which is not in this folder: {_AGAIN}")
    return [folder / name for name in sorted(names)]


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open  # an extra

    try:
        return safe_open(file, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file} can't be read ({first_line(error)}): {_AGAIN}") from error


def _read_mapping(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} can't be read ({first_line(error)}): {_AGAIN}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file} has no keys: {_AGAIN}")
    return content


def _rename(name: str) -> str:
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
