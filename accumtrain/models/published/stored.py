"""`StoredTensors`: the tensors of a published folder. Their sizes are checked before memory is taken for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - with it NumPy knows bfloat16
import numpy as np

from accumtrain.errors import CheckpointError, ConfigError, first_line
from accumtrain.models.published.architecture import Architecture, NextHeadNames, TokenEmbedding
from accumtrain.models.published.folder import CONFIG, Folder

EXTRA = "pretrained"
_DTYPES = ("F64", "F32", "F16", "BF16")
_OLD_ENDINGS = {".weight": ".gamma", ".bias": ".beta"}  # of layer norms in old files


@dataclass(frozen=True)
class _Stored:
    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StoredTensors:
    """The tensors of a folder."""

    folder: Folder

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, from the beginnings of the files.

        Raises:
            ConfigError: the library safetensors is not installed, or a file is not there.
            CheckpointError: a file is damaged, or holds numbers of another kind.
        """
        return {name: stored.shape for name, stored in self._tensors.items()}

    @cached_property
    def _tensors(self) -> dict[str, _Stored]:
        if find_spec("safetensors") is None:
            raise ConfigError(f"{self.folder.given} needs the library safetensors: pip install 'accumtrain[{EXTRA}]'")
        found: dict[str, _Stored] = {}
        for file in self.folder.files:
            self.folder.check_is_file(file)
            with _open(file) as content:
                for name in content.keys():  # noqa: SIM118 - it is no mapping
                    part = content.get_slice(name)
                    found[name] = _Stored(file, part.get_dtype(), tuple(part.get_shape()))
        return found

    def find_name(self, name: str, prefix: str) -> str | None:
        """Return the name in the files of a tensor of the model with a head; None if it is not there."""
        plain = name.removeprefix(prefix)
        spelled = [name, plain]
        for ending, old in _OLD_ENDINGS.items():
            spelled += [each.removesuffix(ending) + old for each in (name, plain) if each.endswith(ending)]
        return next((each for each in spelled if each in self.shapes), None)

    def check_shapes(self, found: Architecture) -> None:
        """Raise CheckpointError if the tensors are not those that config.json describes.

        It is called before memory is taken for them.
        """
        if found.depth > len(self.shapes):
            raise CheckpointError(
                f"{self.folder.given}: {CONFIG} tells {found.depth:,} blocks, and there are "
                f"{len(self.shapes):,} tensors; fetch the folder again"
            )
        for name, shape in found.list_shapes():
            stored = self.find_name(name, found.prefix)
            if stored is None:
                raise CheckpointError(
                    f"{self.folder.given}: no tensor {name} in {self.folder.files[0].name}, which {CONFIG} "
                    "describes; fetch the folder again, or take the files of one model"
                )
            if self.shapes[stored] != shape:
                raise CheckpointError(
                    f"{self.folder.given}: {stored} in {self._tensors[stored].file.name} is "
                    f"{list(self.shapes[stored])}, and {CONFIG} describes {list(shape)}; take the files of one model"
                )
        if found.next_head is not None:
            self._check_next_head(found, found.next_head)

    def _check_next_head(self, found: Architecture, head: NextHeadNames) -> None:
        """Check the vectors of next tokens, which a file may leave out. Tied ones are those of the table of tokens."""
        if head.vectors not in self.shapes:
            return
        assert isinstance(found.embedding, TokenEmbedding), "decoders read tokens"
        table, given = self.find_name(f"{found.embedding.token_table}.weight", found.prefix), self.folder.given
        assert table is not None, "it is one of the large tensors"
        if self.shapes[head.vectors] != self.shapes[table]:
            raise CheckpointError(
                f"{given}: {head.vectors} is {list(self.shapes[head.vectors])}, and {table} "
                f"{list(self.shapes[table])}; take the files of one model"
            )
        if head.tied and not np.array_equal(self.read(head.vectors), self.read(table)):
            raise CheckpointError(
                f"{given}: {head.vectors} is not {table}, and {CONFIG} describes both as one "
                "(tie_word_embeddings); set tie_word_embeddings to false there if the weights were trained so"
            )

    def read(self, name: str) -> np.ndarray:
        """Return a tensor, float32 or float64.

        Raises:
            CheckpointError: it can't be read, is quantised, or has NaN or infinity.
        """
        file, dtype = self._tensors[name].file, self._tensors[name].dtype
        if dtype not in _DTYPES:
            raise CheckpointError(
                f"{self.folder.given}: {name} in {file.name} has numbers of kind {dtype}, and only "
                f"{', '.join(_DTYPES)} are read; take weights that are not quantised"
            )
        with _open(file) as content:
            array: np.ndarray = content.get_tensor(name)
        if array.dtype.itemsize < 4:
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{self.folder.given}: {name} in {file.name} has numbers that are not finite; fetch the file again"
            )
        return array


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    """Open a file of safetensors. Raise CheckpointError for its errors."""
    from safetensors import SafetensorError, safe_open  # an extra

    try:
        with safe_open(file, framework="numpy") as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} can't be read as a file of safetensors: {first_line(error)}; fetch the file again"
        ) from error
