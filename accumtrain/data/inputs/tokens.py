"""Inputs that are tokens: texts, cut and padded to one length, or rows of ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig, NpzConfig, TableConfig, TokenKeys
from accumtrain.data.inputs.base import Asked, Inputs
from accumtrain.data.local_files import find_file_fault, find_paths, readable, walk_files
from accumtrain.data.source import BadExample, Dataset, Split, UnreadableExample, unlabelled
from accumtrain.data.table.columns import read_named_texts
from accumtrain.data.table.others import Row, read_others
from accumtrain.data.text.arrays import ARRAYS, read_token_arrays
from accumtrain.data.text.by_length import trim
from accumtrain.data.text.encode import Encoded, check_some_are_usable, encode_texts
from accumtrain.data.text.rows import RowSplit
from accumtrain.data.text.texts import TABLES, Text, read_file, read_lines
from accumtrain.data.text.token_split import TokenSplit, cut, describe_cuts, take_ids
from accumtrain.data.text.vocabulary import BYTES, MASK, PADDING, Tokenized, Vocabulary
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import NONE, convert, format_value

_GIVE = "give a file with a text a line, a table, a folder of texts, or an .npz file of tokens"
TEXT = "text"  # the column of the texts of a table, for a run that was trained on no table
BEGINNING = 36  # characters that are shown of a text
PACKED, APART = "packed", "apart"  # rows of documents
# ---- samples of an export
_NUMBER = 4
_MASKED = 0.2  # share of masks


@dataclass(frozen=True)
class Tokens(Inputs):
    """Tokens, int32 [N, T] with PADDING behind them.

    Attributes:
        shape: [T], also of pairs.
        vocabulary: That of the ids.
        buckets: Lengths to which a batch is cut, where one holds all of its tokens.
        masks: The most masks of an example, whose tokens the model tells: it takes {"tokens": [N, T], "positions":
            [N, masks]}, and what it is asked has one mask or more. 0: it takes tokens alone, in which [MASK] is text.
        pairs: Examples are pairs of texts, stored as [N, 2, T], tokens and below them their types, which are 0 at
            padding. The model takes {"tokens": [N, T], "types": [N, T]}.
        rows: Examples are rows of documents, stored as [N, 3, T], tokens, targets and numbers of documents. PACKED: of
            several, so that the model takes {"tokens": [N, T], "documents": [N, T]}. APART: of one; it takes tokens.
        continues: The model tells what follows a text, so that what it is asked has no special token at its end, and is
            not cut.
        column: The name of the column of texts that was found in a table; "" if the keys of the data name it.
    """

    kind: ClassVar[str] = "tokens"
    asked: ClassVar[str] = "texts"
    sizes: ClassVar[tuple[str, ...]] = ("tokens",)
    alike: ClassVar[str] = "token for token"

    vocabulary: Vocabulary
    buckets: tuple[int, ...] = ()
    masks: int = 0
    pairs: bool = False
    rows: str = ""
    continues: bool = False
    column: str = ""

    # ---- in training and evaluation

    def batch(self, inputs: tf.Tensor, key: tf.Tensor | None, *, training: bool) -> Any:
        tokens = trim(inputs, self.buckets) if self.buckets else inputs
        if self.pairs:
            return {"tokens": tokens[:, 0], "types": tokens[:, 1]}
        if self.rows:
            return {"tokens": tokens[:, 0], "documents": tokens[:, 2]} if self.rows == PACKED else tokens[:, 0]
        if not self.masks:
            return tokens
        tokens = tf.cast(tokens, tf.int32)
        return {"tokens": tokens, "positions": find_masks(tokens, self.vocabulary.mask, self.masks)}

    @property
    def longest(self) -> Tokens:
        return replace(self, buckets=())

    @property
    def vocabulary_size(self) -> int:
        return self.vocabulary.size

    @property
    def of_bytes(self) -> bool:
        return self.vocabulary.tokenizer == BYTES

    @property
    def adds_mask(self) -> bool:
        return self.vocabulary.adds_mask

    @property
    def used_ids(self) -> int:
        """The number of ids in what the model is asked: a mask that is added is none of a text."""
        return self.vocabulary.size - (self.adds_mask and not self.masks)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of a stored example: [T], [2, T] of a pair, or [3, T] of a row of documents."""
        return (3, *self.shape) if self.rows else (2, *self.shape) if self.pairs else self.shape

    def describe(self) -> str:
        of = ", in pairs of texts" if self.pairs else ", in packed rows" if self.rows == PACKED else ""
        return f"{super().describe()} tokens of {self.vocabulary.size:,}{of}"

    # ---- in the files of a run

    def facts(self) -> dict[str, Any]:
        """Return all but the buckets, into which nothing that a run is asked is cut."""
        facts = {"kind": self.kind, "shape": list(self.shape), "vocabulary": self.vocabulary.as_json()}
        others = {"masks": self.masks, "pairs": self.pairs, "continues": self.continues, "column": self.column}
        return facts | {name: value for name, value in others.items() if value}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], config: DataConfig) -> Tokens:
        shape = tuple(facts["shape"])
        if len(shape) != 1:
            raise ConfigError(f"inputs.shape={format_value(list(shape))}: must be one number of tokens")
        masks: int = convert(int, facts.get("masks", 0), "inputs.masks")
        if not 0 <= masks <= shape[0]:
            raise ConfigError(f"inputs.masks={masks}: must be a number of the {shape[0]} tokens")
        pairs: bool = convert(bool, facts.get("pairs", False), "inputs.pairs")
        if pairs and masks:
            raise ConfigError(f"inputs.pairs=true: must be false with inputs.masks={masks}")
        continues: bool = convert(bool, facts.get("continues", False), "inputs.continues")
        if continues and (pairs or masks):
            raise ConfigError(f"inputs.continues=true: must be false with inputs.{'pairs' if pairs else 'masks'}")
        vocabulary = Vocabulary.from_json(facts.get("vocabulary"), "inputs.vocabulary")
        column: str = convert(str, facts.get("column", ""), "inputs.column")
        return cls(shape, vocabulary, masks=masks, pairs=pairs, continues=continues, column=column)

    # ---- asked of a trained run

    def with_length(self, config: DataConfig) -> Tokens:
        length = config.length if isinstance(config, TokenKeys) else None
        if length is not None and length < self.masks:
            raise ConfigError(
                f"data.length={length}: the run was trained on up to {self.masks} masks of an example, and each is a "
                f"token; give data.length={self.masks} or more"
            )
        return self if length is None else replace(self, shape=(length,))

    def adapt(self, config: DataConfig) -> DataConfig:
        if isinstance(config, TableConfig) and config.text_column is None and self.column:
            config = replace(config, text_column=self.column)
        return replace(config, length=self.shape[0], buckets=[]) if isinstance(config, TokenKeys) else config

    def match(self, split: Split, config: DataConfig) -> Tokens:
        if isinstance(split, RowSplit) and self.continues:
            return replace(self, rows=PACKED if split.packed else APART)
        if split.shape != self.stored_shape:
            is_pair = len(split.shape or ()) > 1
            own, others = ("pairs", "single texts") if is_pair else ("single texts", "pairs")
            raise DataError(
                f"data={config.kind}: its examples are {own}, and the run was trained on {others}: name "
                f"{'one column' if is_pair else 'two columns'} of texts by data.text_column"
            )
        return replace(self, masks=0)

    def open_named(self, named: Sequence[str], config: DataConfig, key: str) -> Asked:
        """Return texts, or the tokens of an .npz file.

        Those that can't be used are left out, and named in `skipped`. Longer ones are cut, which a note says; with
        masks they may not be longer.

        Raises:
            DataError: There is no text, or none can be used.
            ConfigError: The run has no tokenizer for texts.
        """
        (length,), config = self.shape, self.adapt(config)
        paths = [path for text in named for path in _find_named(text, key)]
        parts = [self._read(path, config, key) for path in paths]
        if self.masks or self.continues:
            parts = [replace(part, faults=self._find_faults(part) | dict(part.faults)) for part in parts]
        check_some_are_usable(*parts)
        ends = np.cumsum([len(part.ids) for part in parts])
        if not (total := int(ends[-1])):
            raise DataError(f"{key}={','.join(named)}: holds no text; {_GIVE}")
        first, *more = [
            cut(replace(part, labels=labels), length)
            for part, labels in zip(parts, np.split(_count(total), ends[:-1]), strict=True)
        ]
        split = first.joined_with(more) if more else first
        cut_off = np.delete(split.whole_lengths > length, list(split.skipped)).sum()
        of, added = f"{total:,} {'pairs' if self.pairs else 'texts'}", max(part.added for part in parts)
        notes = [describe_cuts(int(cut_off), of, length, added)] if cut_off else []
        others = list[Row]()
        for path, part in zip(paths, parts, strict=True):
            rows, left_out = _read_others(path, config, key) if is_table(path) else ([Row()] * len(part.ids), [])
            others, notes = others + rows, notes + left_out
        return Asked(list(split.names), unlabelled(split, self, notes), [], others)

    def beginnings(self, split: Split, indices: Sequence[int]) -> list[str]:
        rows = take_ids(split.read(tf.constant([*indices], tf.int64))[0]).numpy()
        around = [*self.vocabulary.template.ids]
        texts = [" ".join(self.vocabulary.decode(row[~np.isin(row, around)].tolist()).split()) for row in rows]
        return [text if len(text) <= BEGINNING else f"{text[: BEGINNING - 3]}..." for text in texts]

    def _read(self, path: Path, config: DataConfig, key: str) -> Encoded:
        if path.suffix.lower() == ARRAYS and not self.pairs:
            keys = replace(config, path=str(path)) if isinstance(config, NpzConfig) else NpzConfig(path=str(path))
            return read_token_arrays(keys, None, self.vocabulary).splits["train"]
        tokenize, template = self.vocabulary.tokenize, self.vocabulary.template
        encoded, _ = encode_texts(
            read_texts(path, config, key),
            self._tokenize_with_masks if self.masks else tokenize,
            template.opening if self.continues else template,
            skips=True,
        )
        return encoded

    def _tokenize_with_masks(self, text: str) -> Tokenized:
        return Tokenized(self.vocabulary.encode_with_masks(text))

    def _find_faults(self, texts: Encoded) -> dict[int, BadExample]:
        """Return the texts with too many tokens, or with other than 1 to `masks` masks, by their indices."""
        (length,), faults = self.shape, dict[int, BadExample]()
        for index, (name, own) in enumerate(zip(texts.names, texts.ids, strict=True)):
            masks = int((own == self.vocabulary.mask).sum())
            if self.masks and not 1 <= masks <= self.masks:
                remedy = f"write 1 to {self.masks} of them, each for a token to predict"
                faults[index] = BadExample(name, f"has {masks} {MASK}", remedy)
            elif (tokens := len(own) + texts.added) > length:
                remedy = "shorten it, or make several texts of it"
                faults[index] = BadExample(name, f"has {tokens} tokens, and the model takes {length}", remedy)
        return faults

    def open_array(self, array: np.ndarray, config: DataConfig) -> Dataset:
        """Return tokens, integers [N, T] with PADDING where there is none. Rows that can't be used are in `skipped`.

        Raises:
            DataError: They have another shape or dtype, or an id is not of the vocabulary.
        """
        (length,), size = self.shape, self.used_ids
        if array.dtype.kind not in "iu" or array.shape[1:] != self.stored_shape or not len(array):
            wanted = f"[N, 2, {length}], tokens and below them their types," if self.pairs else f"[N, {length}]"
            raise DataError(
                f"the inputs are of type {array.dtype} and have the shape {list(array.shape)}: the model was trained "
                f"on tokens, whole numbers {wanted} with {PADDING} for padding; give such, or the name of a file "
                "of texts"
            )
        tokens = take_ids(array)
        wrong = (tokens < PADDING) | (tokens >= size)
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise DataError(
                f"the inputs hold {tokens[row, column]} at row {row}, column {column}: tokens are 0..{size - 1}, and "
                f"{PADDING} is padding; correct it"
            )
        if self.pairs:
            self._check_types(array[:, 1])
        if self.continues and (gap := (tokens[:, :-1] == PADDING) & (tokens[:, 1:] != PADDING)).any():
            raise DataError(
                f"the inputs hold padding before a token in row {int(np.argwhere(gap)[0][0])}: write it behind all "
                "tokens, as the last one is continued"
            )
        names = [f"row {row}" for row in range(len(array))]
        ids = [row[row != PADDING].astype(np.int32) for row in tokens]
        faults = self._find_faults(Encoded(names, ids, _count(len(ids)))) if self.masks else {}
        faults |= {row: UnreadableExample(names[row], "holds no token") for row, own in enumerate(ids) if not len(own)}
        return unlabelled(TokenSplit(array.astype(np.int32), _count(len(array)), names, faults), self)

    def _check_types(self, types: np.ndarray) -> None:
        """Raise DataError for a type that the tokenizer gives no token of a pair."""
        known = sorted({0, *(part.type for part in self.vocabulary.template.pair)})
        wrong = ~np.isin(types, known)
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise DataError(
                f"the inputs hold the type {types[row, column]} at row {row}, column {column}: types are "
                f"{', '.join(map(str, known))}, and 0 at padding; correct it"
            )

    # ---- in an export

    @property
    def signature(self) -> tf.TensorSpec:
        return tf.TensorSpec([None, *self.stored_shape], tf.int32, "inputs")

    def samples(self) -> list[np.ndarray]:
        """Return tokens of several lengths, masks among them if texts have any; of pairs with types, half of them 1."""
        random, (length,) = np.random.default_rng(0), self.shape
        tokens = random.integers(0, self.used_ids, [_NUMBER, length], np.int32)
        if self.used_ids > self.vocabulary.mask:
            tokens[random.random(tokens.shape) < _MASKED] = self.vocabulary.mask
        ends = np.linspace(1, length, _NUMBER, dtype=np.int32)
        is_used = np.arange(length) < ends[:, np.newaxis]
        tokens = np.where(is_used, tokens, np.int32(PADDING))
        if not self.pairs:
            return [tokens]
        types = is_used & (np.arange(length) >= ends[:, np.newaxis] // 2)
        return [np.stack([tokens, types.astype(np.int32)], axis=1)]

    def texts(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary.as_json()}


def find_masks(tokens: tf.Tensor, mask: int, most: int) -> tf.Tensor:
    """Return the first `most` positions of the mask token in tokens [N, T], in their order, int32 [N, most]."""
    length = tf.shape(tokens)[1]
    # converters of exports know top_k of floats, which hold integers up to 2^24
    from_end = tf.where(tokens == mask, tf.cast(length - tf.range(length), tf.float32), 0.0)
    values, positions = tf.math.top_k(from_end, most)
    return tf.where(values > 0.0, positions, NONE)


def _find_named(text: str, key: str) -> list[Path]:
    """Return the files and folders that a text names. Raise DataError if there is none."""
    return [Path(text)] if Path(text).suffix.lower() == ARRAYS else find_paths(text, key)


def is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES and not path.is_dir()


def read_texts(path: Path, config: DataConfig, key: str) -> Iterable[Text]:
    """Return the texts of a file or folder. Raise DataError if it can't be read.

    Args:
        config: The data keys of the run.
        key: That gives the path, for messages.
    """
    keys = _keys_of_table(path, config)
    columns = keys.asked_columns or [TEXT]
    with readable():
        if len(columns) > 1 and not is_table(path):
            raise DataError(
                f"{key}={path} has no pairs, on which the run was trained: give a table with the columns "
                f"{' and '.join(map(str, columns))}"
            )
        if path.is_dir():
            return [read_file(file) for file in walk_files(path)]
    if fault := find_file_fault(path):
        raise DataError(f"{key}={path} {fault}: {_GIVE}")
    return read_named_texts(path, key, columns, header=keys.header) if is_table(path) else read_lines(path)


def _read_others(path: Path, config: DataConfig, key: str) -> tuple[list[Row], list[str]]:
    """Return the cells of a table beside its texts, and notes of columns that are left out."""
    keys = _keys_of_table(path, config)
    return read_others(path, key, keys.asked_columns or [TEXT], header=keys.header)


def _keys_of_table(path: Path, config: DataConfig) -> TableConfig:
    return config if isinstance(config, TableConfig) else TableConfig(path=str(path))


def _count(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32)
