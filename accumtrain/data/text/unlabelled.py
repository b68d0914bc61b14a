"""Texts without targets, which a trained run is to answer, as the test split of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from accumtrain.data.config import DataConfig, TokensConfig
from accumtrain.data.local_files import find_file_fault, find_paths, readable, walk_files
from accumtrain.data.source import BadExample, PlainData, UnreadableExample
from accumtrain.data.text.arrays import read_token_arrays
from accumtrain.data.text.encode import Encoded, encode_texts
from accumtrain.data.text.texts import JSON_LINES, Text, check_lines, read_file, read_json_lines, read_lines
from accumtrain.data.text.token_split import TokenSplit, cut
from accumtrain.data.text.tokens import ARRAYS
from accumtrain.data.text.vocabulary import MASK, PADDING, Vocabulary
from accumtrain.errors import DataError
from accumtrain.runs.run import Images

_GIVE = "give a file with a text a line, a .jsonl file, a folder of texts, or an .npz file of tokens"


def open_texts(text: str, config: DataConfig, images: Images, masks: int = 0) -> tuple[list[str], PlainData]:
    """Return the names of the texts that predict.input names, and the texts as tokens. The label is the place of each.

    Texts that can't be used are left out, and named in `skipped`. Longer ones are cut, which a note says.

    Args:
        config: the data keys of the run.
        images: those that the run was trained on, with the vocabulary.
        masks: the most mask tokens of a text, which then has one or more, and may not be longer. 0: [MASK] is text.

    Raises:
        DataError: There is no text, or none can be used.
        ConfigError: The run has no tokenizer for texts.
    """
    vocabulary, (length,) = Vocabulary.from_json(images.vocabulary), images.shape
    if holds_tokens(text):
        arrays = read_token_arrays(_keys_for(text, config), None, vocabulary)
        encoded = arrays.splits["train"]
    else:
        encode = vocabulary.encode_with_masks if masks else vocabulary.encode
        encoded, _ = encode_texts(read_texts(text, config), encode, skips=True)
    if masks:
        own = _find_mask_faults(encoded.names, encoded.ids, vocabulary.mask, masks, length)
        encoded = replace(encoded, faults=own | dict(encoded.faults))
    encoded.check_some_are_usable()
    if not encoded.ids:
        raise DataError(f"predict.input={text}: holds no text; {_GIVE}")
    longer = sum(len(ids) > length for place, ids in enumerate(encoded.ids) if place not in encoded.faults)
    notes = [f"{longer:,} of {len(encoded.ids):,} texts are cut to their first {length:,} tokens"] if longer else []
    return list(encoded.names), _make_data(_with_places(encoded, length), images, vocabulary, notes)


def open_token_rows(rows: np.ndarray, images: Images, masks: int = 0) -> PlainData:
    """Return tokens, integers [N, T] with PADDING where there is none, as a data set. The label is the place of each.

    Rows that can't be used are named in `skipped`.

    Args:
        images: those that the run was trained on, with the vocabulary.
        masks: the most mask tokens of a row, which then has one or more; 0: any number.

    Raises:
        DataError: They have another shape or dtype, or an id is not of the vocabulary.
    """
    vocabulary = Vocabulary.from_json(images.vocabulary)
    if rows.dtype.kind not in "iu" or rows.shape[1:] != images.shape or not len(rows):
        raise DataError(
            f"the inputs are of type {rows.dtype} and have the shape {list(rows.shape)}: the model was trained on "
            f"tokens, whole numbers [N, {images.shape[0]}] with {PADDING} for padding; give such, or the name of a "
            "file of texts"
        )
    wrong = (rows < PADDING) | (rows >= vocabulary.size)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise DataError(
            f"the inputs hold {rows[row, column]} at row {row}, column {column}: tokens are 0..{vocabulary.size - 1}, "
            f"and {PADDING} is padding; correct it"
        )
    names, ids = [f"row {row}" for row in range(len(rows))], [row[row != PADDING].astype(np.int32) for row in rows]
    faults = _find_mask_faults(names, ids, vocabulary.mask, masks, images.shape[0]) if masks else {}
    faults |= {row: UnreadableExample(names[row], "holds no token") for row, own in enumerate(ids) if not len(own)}
    return _make_data(TokenSplit(rows.astype(np.int32), _count(len(rows)), names, faults), images, vocabulary, [])


def _find_mask_faults(
    names: Sequence[str], ids: Sequence[np.ndarray], mask: int, most: int, length: int
) -> dict[int, BadExample]:
    """Return the texts with other than 1 to `most` masks, or with more than `length` tokens, by their places."""
    faults = dict[int, BadExample]()
    for place, (name, own) in enumerate(zip(names, ids, strict=True)):
        masks = int((own == mask).sum())
        if not 1 <= masks <= most:
            remedy = f"write 1 to {most} of them, each for a token to predict"
            faults[place] = BadExample(name, f"has {masks} {MASK}", remedy)
        elif len(own) > length:
            remedy = "shorten it, or make several texts of it"
            faults[place] = BadExample(name, f"has {len(own)} tokens, and the model takes {length}", remedy)
    return faults


def holds_tokens(text: str) -> bool:
    """Return whether predict.input names a file of tokens, not of texts."""
    return Path(text).suffix.lower() == ARRAYS


def read_texts(text: str, config: DataConfig) -> Iterable[Text]:
    """Return the texts of the files and folders that predict.input names. Raise DataError if one can't be read.

    Args:
        config: the data keys of the run.
    """
    return chain.from_iterable([_read_path(path, config) for path in find_paths(text)])


def _read_path(path: Path, config: DataConfig) -> Iterable[Text]:
    with readable():
        if path.is_dir():
            return [read_file(file) for file in walk_files(path)]
    if fault := find_file_fault(path):
        raise DataError(f"predict.input={path} {fault}: {_GIVE}")
    if path.suffix.lower() in JSON_LINES:
        return read_json_lines(path, _keys_for(str(path), config).text_key)
    check_lines(path)
    return read_lines(path)


def _keys_for(text: str, config: DataConfig) -> TokensConfig:
    return replace(config, path=text) if isinstance(config, TokensConfig) else TokensConfig(path=text)


def _with_places(texts: Encoded, length: int) -> TokenSplit:
    return cut(replace(texts, labels=_count(len(texts.ids))), length)


def _count(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32)


def _make_data(split: TokenSplit, images: Images, vocabulary: Vocabulary, notes: Sequence[str]) -> PlainData:
    return PlainData(
        train=split,
        test=split,
        num_classes=len(images.class_names),
        notes=list(notes),
        class_names=images.class_names,
        shape=images.shape,
        vocabulary=vocabulary,
    )
