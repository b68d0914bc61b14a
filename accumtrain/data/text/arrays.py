"""Tokens of one's own as arrays of a NumPy .npz file: tokens [N, T], and if need be mask [N, T] and labels [N]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accumtrain.data.config import NpzConfig
from accumtrain.data.source import UnreadableExample
from accumtrain.data.sources.npz_file import NpzFile
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.targets.base import TargetReader, Targets
from accumtrain.data.text.encode import Encoded, no_label
from accumtrain.data.text.vocabulary import LARGEST, PADDING, Vocabulary, number_ids
from accumtrain.errors import DataError

ARRAYS = ".npz"
_BYTES_OF_TOKEN, _BYTES_OF_ROW = 24, 512  # of memory, for ids as they are stored, read and cut


@dataclass(frozen=True)
class TokenArrays:
    """The texts of each split as tokens, their vocabulary and longest row, and the targets that name the classes."""

    vocabulary: Vocabulary
    splits: dict[str, Encoded]
    columns: int
    targets: Targets | None


def read_token_arrays(
    config: NpzConfig, reader: TargetReader | None, vocabulary: Vocabulary | None = None
) -> TokenArrays:
    """Return the texts of a file. Padding is taken out of each row, wherever it stands.

    Args:
        reader: the way to read the labels; None reads none.
        vocabulary: that of the ids; None: ids are 0..data.vocabulary-1, or up to the largest that is found.

    Raises:
        DataError: The file can't be read, or holds no such arrays. The message names row and column of a bad id.
    """
    with NpzFile.opened(config.path) as file:
        for prefix in file.prefixes.values():
            _check_headers(file, prefix)
            if reader is not None:
                _check_labels(file, prefix)
        targets = {} if reader is None else file.read_targets(reader)
        arrays = {split: _read_padded(file, prefix, config) for split, prefix in file.prefixes.items()}
    names = {split: f"{file.prefixes[split]}tokens" for split in arrays}
    known = vocabulary or number_ids(config.vocabulary or max(int(array.max()) for array in arrays.values()) + 1)
    for split, array in arrays.items():
        _check_ids(config, names[split], array, known.size if vocabulary else known.size - 1, own=vocabulary is None)
    splits = {
        split: _encode(f"{config.path}: {names[split]}", array, targets.get(split)) for split, array in arrays.items()
    }
    return TokenArrays(known, splits, max(array.shape[1] for array in arrays.values()), targets.get("train"))


def _check_headers(file: NpzFile, prefix: str) -> None:
    """Raise DataError for types and shapes that tokens and their mask can't have."""
    name, masks = f"{prefix}tokens", f"{prefix}mask"
    shape, dtype = file.read_header(name)
    if dtype.kind not in "iu":
        raise DataError(f"{file.path}: {name} is of type {dtype}: tokens are ids; save them by tokens.astype('int32')")
    if len(shape) != 2 or min(shape) < 1:
        raise DataError(f"{file.path}: {name} has the shape {list(shape)}: give [N, T], a row for each text")
    if not file.has_array(masks):
        return
    of_mask, mask_type = file.read_header(masks)
    if of_mask != shape or mask_type.kind not in "biu":
        raise DataError(
            f"{file.path}: {masks} has the shape {list(of_mask)} and the type {mask_type}, {name} the shape "
            f"{list(shape)}: give a mask of that shape, of 1 for a token and 0 for padding"
        )


def _check_labels(file: NpzFile, prefix: str) -> None:
    """Raise DataError unless there is a label for each row."""
    (rows, _), _ = file.read_header(f"{prefix}tokens")
    shape, dtype = file.read_header(f"{prefix}labels")
    file.check_labels(f"{prefix}labels", shape, dtype)
    if shape[0] != rows:
        raise DataError(
            f"{file.path}: {prefix}tokens has {rows} rows, {prefix}labels has {shape[0]} labels: give one label "
            "for each row"
        )


def _read_padded(file: NpzFile, prefix: str, config: NpzConfig) -> np.ndarray:
    """Return the tokens of a split, int32 [N, T], with PADDING where the file says that there is none."""
    name = f"{prefix}tokens"
    (_, columns), _ = file.read_header(name)
    tokens = file.read_array(name, _BYTES_OF_TOKEN + _BYTES_OF_ROW // columns)
    padded = np.zeros(tokens.shape, bool) if config.padding is None else tokens == config.padding
    if file.has_array(f"{prefix}mask"):
        mask = file.read_array(f"{prefix}mask")
        if not np.isin(mask, (0, 1)).all():
            row, column = np.argwhere(~np.isin(mask, (0, 1)))[0].tolist()
            raise DataError(
                f"{config.path}: {prefix}mask holds {mask[row, column]} at row {row}, column {column}: write 1 for a "
                "token and 0 for padding"
            )
        padded |= mask == 0
    beyond = ~padded & ((tokens < 0) | (tokens > LARGEST))
    if beyond.any():
        row, column = np.argwhere(beyond)[0].tolist()
        raise DataError(
            f"{config.path}: {name} holds {tokens[row, column]} at row {row}, column {column}: ids are 0..{LARGEST}; "
            "correct it, or if it is padding, set data.padding to it"
        )
    ids = tokens.astype(np.int32)
    ids[padded] = PADDING
    return ids


def _check_ids(config: NpzConfig, name: str, tokens: np.ndarray, size: int, *, own: bool) -> None:
    if tokens.max() < size:
        return
    row, column = np.argwhere(tokens >= size)[0].tolist()
    rule = f"with data.vocabulary={size} ids are" if own else "the ids of the vocabulary are"
    remedy = f"set data.vocabulary={int(tokens.max()) + 1}" if own else "give tokens of that vocabulary"
    raise DataError(
        f"{config.path}: {name} holds {tokens[row, column]} at row {row}, column {column}: {rule} 0..{size - 1}; "
        f"correct it, or {remedy}"
    )


def _encode(name: str, tokens: np.ndarray, targets: Targets | None) -> Encoded:
    ids = [row[row != PADDING] for row in tokens]
    names = [f"{name}, row {row}" for row in range(len(ids))]
    faults = {row: UnreadableExample(names[row], "holds no token") for row, own in enumerate(ids) if not len(own)}
    labels = no_label(len(ids)) if targets is None else targets.values.astype(np.int32)
    labels[list(faults)] = UNREADABLE
    return Encoded(names, ids, labels, faults)
