"""Tokens of texts as a split: cut to one length, or cut into pieces of it, and padded behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from accumtrain.console import format_bytes
from accumtrain.data.source import BadExample, Split
from accumtrain.data.text.encode import Encoded
from accumtrain.data.text.vocabulary import PADDING
from accumtrain.errors import DataError
from accumtrain.process.machine import spare_bytes

_BYTES = 2 * 4  # of a token, in NumPy's and in TensorFlow's memory
_INSTEAD = 0  # the only token of a text that is left out, so that a model has something to compute


class TokenSplit(Split):
    """Tokens of texts in memory.

    Args:
        tokens: int32 [size, T], PADDING where there is none.
        labels: int32 [size], the classes, or float32 [size, T]; None: the tokens are the targets, too.
        names: The name of each example in messages.
        faults: The examples that are left out, by their indices. They have the weight 0.
        groups: int32 [size], the number of the text that an example is a piece of; None: each is a text.

    Attributes:
        lengths: int32 [size], the tokens of each example.
    """

    channels = 1

    def __init__(
        self,
        tokens: np.ndarray,
        labels: np.ndarray | None,
        names: Sequence[str],
        faults: Mapping[int, BadExample] | None = None,
        groups: np.ndarray | None = None,
    ) -> None:
        self.size, self.shape = len(tokens), tokens.shape[1:]
        self.tokens, self.labels, self.names, self.groups = tokens, labels, names, groups
        self.known_labels = labels
        self.lengths: np.ndarray = (tokens != PADDING).sum(axis=1).astype(np.int32)
        self._faults = dict(faults or {})
        weights = np.ones(len(tokens), np.float32)
        weights[list(self._faults)] = 0.0
        with tf.device("CPU"):
            self._tokens = tf.constant(tokens, tf.int32)
            self._labels = None if labels is None else _as_targets(labels)
            self._weights = tf.constant(weights) if self._faults else None

    @property
    def skipped(self) -> dict[int, BadExample]:
        return self._faults

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return tokens int32 [n, T], and labels or the tokens again, of the examples `index`, int64 [n]."""
        tokens = tf.gather(self._tokens, index)
        return tokens, tokens if self._labels is None else tf.gather(self._labels, index)

    def weights(self, index: tf.Tensor) -> tf.Tensor:
        return super().weights(index) if self._weights is None else tf.gather(self._weights, index)

    def joined_with(self, others: Sequence[Split]) -> TokenSplit:
        """Return the examples of this split and of others, which are TokenSplits, in their order, without groups."""
        splits = [self, *(split for split in others if isinstance(split, TokenSplit))]
        starts = np.cumsum([0, *(split.size for split in splits)]).tolist()
        labels = [split.labels for split in splits if split.labels is not None]
        return TokenSplit(
            np.concatenate([split.tokens for split in splits]),
            np.concatenate(labels) if labels else None,
            [name for split in splits for name in split.names],
            {
                start + index: fault
                for start, split in zip(starts, splits, strict=False)
                for index, fault in split.skipped.items()
            },
        )


def _as_targets(labels: np.ndarray) -> tf.Tensor:
    return tf.constant(labels, tf.float32) if labels.ndim > 1 else tf.constant(np.maximum(labels, 0), tf.int32)


def cut(texts: Encoded, length: int) -> TokenSplit:
    """Return texts with their labels, each cut to `length` tokens."""
    return TokenSplit(_fill(texts.ids, length), texts.labels, texts.names, texts.faults, texts.groups)


def cut_into_pieces(texts: Encoded, length: int) -> TokenSplit:
    """Return pieces of texts, each of `length` tokens but for the last of a text, with the tokens as targets.

    The pieces of a text are in one group. A text that is left out is one piece.
    """
    counts = np.array([max(1, -(-len(ids) // length)) for ids in texts.ids], np.int64)
    pieces = [ids[start : start + length] for ids in texts.ids for start in range(0, max(len(ids), 1), length)]
    first = np.cumsum(counts) - counts
    of_text = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    groups = of_text if counts.max(initial=1) > 1 else None
    return TokenSplit(
        _fill(pieces, length),
        None,
        [texts.names[text] for text in of_text.tolist()],
        {int(first[index]): fault for index, fault in texts.faults.items()},
        groups if texts.groups is None else texts.groups[of_text],
    )


def _fill(pieces: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Return the first `length` tokens of each, int32 [N, length], padded behind. Raise DataError if it has no room."""
    if (size := _BYTES * len(pieces) * length) > (spare := spare_bytes()):
        raise DataError(
            f"data.length={length}: {len(pieces):,} examples of so many tokens take {format_bytes(size)}, and "
            f"{format_bytes(spare)} of memory are free; give a smaller data.length"
        )
    tokens = np.full([len(pieces), length], PADDING, np.int32)
    for row, ids in zip(tokens, pieces, strict=True):
        row[: min(len(ids), length)] = ids[:length]
    tokens[(tokens == PADDING).all(axis=1), 0] = _INSTEAD
    return tokens
