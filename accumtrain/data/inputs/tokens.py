"""Inputs that are tokens: texts, cut and padded to one length, or rows of ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from accumtrain.console import format_things
from accumtrain.data.config import DataConfig, NpzConfig, TableConfig, TokenKeys
from accumtrain.data.inputs.base import Asked, Inputs
from accumtrain.data.local_files import find_file_fault, find_paths, readable, walk_files
from accumtrain.data.source import BadExample, Dataset, Split, UnreadableExample, unlabelled
from accumtrain.data.table.columns import read_named_texts
from accumtrain.data.text.arrays import ARRAYS, read_token_arrays
from accumtrain.data.text.by_length import trim
from accumtrain.data.text.encode import Encoded, encode_texts, join_encoded
from accumtrain.data.text.texts import TABLES, Text, read_file, read_lines
from accumtrain.data.text.token_split import TokenSplit, cut
from accumtrain.data.text.vocabulary import MASK, PADDING, Vocabulary
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import convert, format_value

_GIVE = "give a file with a text a line, a table, a folder of texts, or an .npz file of tokens"
BEGINNING = 36  # characters that are shown of a text
NONE = -1  # where there is no token, position or id
# ---- samples of an export
_NUMBER = 4
_MASKED = 0.2  # share of masks


@dataclass(frozen=True)
class Tokens(Inputs):
    """Tokens, int32 [N, T] with PADDING behind them.

    Attributes:
        vocabulary: That of the ids.
        buckets: Lengths to which a batch is cut, where one holds all of its tokens.
        masks: The most masks of an example, whose tokens the model tells: it takes {"tokens": [N, T], "positions":
            [N, masks]}, and what it is asked has one mask or more. 0: it takes tokens alone, in which [MASK] is text.
    """

    kind: ClassVar[str] = "tokens"
    asked: ClassVar[str] = "texts"
    sizes: ClassVar[tuple[str, ...]] = ("tokens",)
    alike: ClassVar[str] = "token for token"

    vocabulary: Vocabulary
    buckets: tuple[int, ...] = ()
    masks: int = 0

    # ---- in training and evaluation

    def batch(self, inputs: tf.Tensor, key: tf.Tensor | None, *, training: bool) -> Any:
        tokens = trim(inputs, self.buckets) if self.buckets else inputs
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

    def describe(self) -> str:
        return f"{super().describe()} tokens of {self.vocabulary.size:,}"

    # ---- in the files of a run

    def facts(self) -> dict[str, Any]:
        """Return all but the buckets, into which nothing that a run is asked is cut."""
        facts = {"kind": self.kind, "shape": list(self.shape), "vocabulary": self.vocabulary.as_json()}
        return facts | ({"masks": self.masks} if self.masks else {})

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], config: DataConfig) -> Tokens:
        shape = tuple(facts["shape"])
        if len(shape) != 1:
            raise ConfigError(f"inputs.shape={format_value(list(shape))}: must be one number of tokens")
        masks: int = convert(int, facts.get("masks", 0), "inputs.masks")
        if not 0 <= masks <= shape[0]:
            raise ConfigError(f"inputs.masks={masks}: must be a number of the {shape[0]} tokens")
        return cls(shape, Vocabulary.from_json(facts.get("vocabulary"), "inputs.vocabulary"), masks=masks)

    # ---- asked of a trained run

    def adapt(self, config: DataConfig) -> DataConfig:
        return replace(config, length=self.shape[0], buckets=[]) if isinstance(config, TokenKeys) else config

    def match(self, split: Split, config: DataConfig) -> Tokens:
        return replace(self, masks=0)

    def open_named(self, named: Sequence[str], config: DataConfig, key: str) -> Asked:
        """Return texts, or the tokens of an .npz file.

        Those that can't be used are left out, and named in `skipped`. Longer ones are cut, which a note says; with
        masks they may not be longer.

        Raises:
            DataError: There is no text, or none can be used.
            ConfigError: The run has no tokenizer for texts.
        """
        (length,) = self.shape
        encoded = join_encoded([self._read(text, config, key) for text in named])
        if self.masks:
            own = _find_mask_faults(encoded.names, encoded.ids, self.vocabulary.mask, self.masks, length)
            encoded = replace(encoded, faults=own | dict(encoded.faults))
        encoded.check_some_are_usable()
        if not encoded.ids:
            raise DataError(f"{key}={','.join(named)}: holds no text; {_GIVE}")
        longer = sum(len(ids) > length for index, ids in enumerate(encoded.ids) if index not in encoded.faults)
        of = f"of {len(encoded.ids):,} texts"
        cuts = f"{format_things(longer, f'{of} is', f'{of} are')} cut to the first {length:,} tokens"
        split = cut(replace(encoded, labels=_count(len(encoded.ids))), length)
        return Asked(list(encoded.names), unlabelled(split, self, [cuts] if longer else []), [])

    def beginnings(self, split: Split, indices: Sequence[int]) -> list[str]:
        examples = [split.read(tf.constant(index, tf.int64))[0].numpy().tolist() for index in indices]
        texts = [" ".join(self.vocabulary.decode(tokens).split()) for tokens in examples]
        return [text if len(text) <= BEGINNING else f"{text[: BEGINNING - 3]}..." for text in texts]

    def _read(self, text: str, config: DataConfig, key: str) -> Encoded:
        if Path(text).suffix.lower() == ARRAYS:
            keys = replace(config, path=text) if isinstance(config, NpzConfig) else NpzConfig(path=text)
            return read_token_arrays(keys, None, self.vocabulary).splits["train"]
        encode = self.vocabulary.encode_with_masks if self.masks else self.vocabulary.encode
        encoded, _ = encode_texts(read_texts(text, config, key), encode, skips=True)
        return encoded

    def open_array(self, array: np.ndarray, config: DataConfig) -> Dataset:
        """Return tokens, integers [N, T] with PADDING where there is none. Rows that can't be used are in `skipped`.

        Raises:
            DataError: They have another shape or dtype, or an id is not of the vocabulary.
        """
        (length,), size = self.shape, self.vocabulary.size
        if array.dtype.kind not in "iu" or array.shape[1:] != self.shape or not len(array):
            raise DataError(
                f"the inputs are of type {array.dtype} and have the shape {list(array.shape)}: the model was trained "
                f"on tokens, whole numbers [N, {length}] with {PADDING} for padding; give such, or the name of a file "
                "of texts"
            )
        wrong = (array < PADDING) | (array >= size)
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise DataError(
                f"the inputs hold {array[row, column]} at row {row}, column {column}: tokens are 0..{size - 1}, and "
                f"{PADDING} is padding; correct it"
            )
        names = [f"row {row}" for row in range(len(array))]
        ids = [row[row != PADDING].astype(np.int32) for row in array]
        faults = _find_mask_faults(names, ids, self.vocabulary.mask, self.masks, length) if self.masks else {}
        faults |= {row: UnreadableExample(names[row], "holds no token") for row, own in enumerate(ids) if not len(own)}
        return unlabelled(TokenSplit(array.astype(np.int32), _count(len(array)), names, faults), self)

    # ---- in an export

    @property
    def signature(self) -> tf.TensorSpec:
        return tf.TensorSpec([None, *self.shape], tf.int32, "inputs")

    def samples(self) -> list[np.ndarray]:
        """Return tokens, masks among them, of several lengths."""
        random, (length,) = np.random.default_rng(0), self.shape
        tokens = random.integers(0, self.vocabulary.size, [_NUMBER, length], np.int32)
        tokens[random.random(tokens.shape) < _MASKED] = self.vocabulary.mask
        ends = np.linspace(1, length, _NUMBER, dtype=np.int32)
        return [np.where(np.arange(length) < ends[:, np.newaxis], tokens, np.int32(PADDING))]

    def texts(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary.as_json()}


def find_masks(tokens: tf.Tensor, mask: int, most: int) -> tf.Tensor:
    """Return the first `most` positions of the mask token in tokens [N, T], in their order, int32 [N, most]."""
    length = tf.shape(tokens)[1]
    # converters of exports know top_k of floats, which hold integers up to 2^24
    from_end = tf.where(tokens == mask, tf.cast(length - tf.range(length), tf.float32), 0.0)
    values, positions = tf.math.top_k(from_end, most)
    return tf.where(values > 0.0, positions, NONE)


def _find_mask_faults(
    names: Sequence[str], ids: Sequence[np.ndarray], mask: int, most: int, length: int
) -> dict[int, BadExample]:
    """Return the texts with other than 1 to `most` masks, or with more than `length` tokens, by their indices."""
    faults = dict[int, BadExample]()
    for index, (name, own) in enumerate(zip(names, ids, strict=True)):
        masks = int((own == mask).sum())
        if not 1 <= masks <= most:
            remedy = f"write 1 to {most} of them, each for a token to predict"
            faults[index] = BadExample(name, f"has {masks} {MASK}", remedy)
        elif len(own) > length:
            remedy = "shorten it, or make several texts of it"
            faults[index] = BadExample(name, f"has {len(own)} tokens, and the model takes {length}", remedy)
    return faults


def read_texts(text: str, config: DataConfig, key: str) -> Iterable[Text]:
    """Return the texts of the files and folders that a text names. Raise DataError if one can't be read.

    Args:
        config: The data keys of the run.
        key: That gives the text, for messages.
    """
    return chain.from_iterable([_read_path(path, config, key) for path in find_paths(text, key)])


def _read_path(path: Path, config: DataConfig, key: str) -> Iterable[Text]:
    with readable():
        if path.is_dir():
            return [read_file(file) for file in walk_files(path)]
    if fault := find_file_fault(path):
        raise DataError(f"{key}={path} {fault}: {_GIVE}")
    if path.suffix.lower() in TABLES:
        keys = config if isinstance(config, TableConfig) else TableConfig(path=str(path))
        return read_named_texts(path, key, keys.text_column or "text", header=keys.header)
    return read_lines(path)


def _count(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32)
