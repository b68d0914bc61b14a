"""Tokens of texts as a split: cut to one length, or cut into pieces of it, and padded behind.

Special tokens are around each example, as the template of the texts says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.console import format_bytes, format_things
from accumtrain.data.source import BadExample, Split
from accumtrain.data.text.encode import Encoded
from accumtrain.data.text.vocabulary import PADDING
from accumtrain.errors import DataError
from accumtrain.process.machine import spare_bytes

COPIES = 3  # of tokens, while they become TensorFlow's
_BYTES = 4  # of a token
_INSTEAD = 0  # the only token of a text that is left out, so that a model has something to compute


class TokenSplit(Split):
    """Tokens of texts in memory.

    Args:
        tokens: int32 or less [size, T], PADDING where there is none. Of pairs [size, 2, T], tokens and below them their
            types.
        labels: int32 [size], the classes, or float32 [size, T]; None: the tokens are the targets, too.
        names: The name of each example in messages.
        faults: The examples that are left out, by their indices. They have the weight 0.
        groups: int32 [size], the number of the text that an example is a piece of; None: each is a text.
        whole_lengths: int32 [size], the tokens of each example before it was cut; None: nothing was cut.

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
        whole_lengths: np.ndarray | None = None,
    ) -> None:
        with tf.device("CPU"):
            self._tokens = tf.constant(tokens)
        self.tokens = np.asarray(self._tokens)  # the same memory
        self.size, self.shape = len(self.tokens), self.tokens.shape[1:]
        self.labels, self.names, self.groups = labels, names, groups
        self.known_labels = labels
        self.lengths: np.ndarray = (take_ids(self.tokens) != PADDING).sum(axis=1).astype(np.int32)
        self.whole_lengths = self.lengths if whole_lengths is None else whole_lengths
        self._faults = dict(faults or {})
        weights = np.ones(self.size, np.float32)
        weights[list(self._faults)] = 0.0
        with tf.device("CPU"):
            self._labels = None if labels is None else _as_targets(labels)
            self._weights = tf.constant(weights) if self._faults else None

    @property
    def skipped(self) -> dict[int, BadExample]:
        return self._faults

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return tokens int32 [n, T], or [n, 2, T], and labels or the tokens again, of the examples `index`."""
        tokens = tf.cast(tf.gather(self._tokens, index), tf.int32)
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
            whole_lengths=np.concatenate([split.whole_lengths for split in splits]),
        )


def take_ids(tokens: Any) -> Any:
    """Return tokens [N, T] of tokens [N, T] themselves, or of [N, 2, T], below which are their types."""
    return tokens if len(tokens.shape) == 2 else tokens[:, 0]


def _as_targets(labels: np.ndarray) -> tf.Tensor:
    return tf.constant(labels, tf.float32) if labels.ndim > 1 else tf.constant(np.maximum(labels, 0), tf.int32)


def cut(texts: Encoded, length: int) -> TokenSplit:
    """Return texts or pairs with their labels, each cut to `length` tokens."""
    examples = (texts.template.frame(own, length) for own in texts.texts)
    tokens = _fill(examples, len(texts.ids), length, with_types=texts.seconds is not None)
    return TokenSplit(tokens, texts.labels, texts.names, texts.faults, texts.groups, texts.lengths)


def cut_into_pieces(texts: Encoded, length: int) -> TokenSplit:
    """Return pieces of texts, each of `length` tokens but for the last of a text, with the tokens as targets.

    The pieces of a text are in one group. A text that is left out is one piece.
    """
    room = length - texts.added
    counts = np.array([max(1, -(-len(ids) // room)) for ids in texts.ids], np.int64)
    examples = (
        texts.template.frame([ids[start : start + room]], length)
        for ids in texts.ids
        for start in range(0, max(len(ids), 1), room)
    )
    first = np.cumsum(counts) - counts
    of_text = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    groups = of_text if counts.max(initial=1) > 1 else None
    return TokenSplit(
        _fill(examples, len(of_text), length, with_types=False),
        None,
        [texts.names[text] for text in of_text.tolist()],
        {int(first[index]): fault for index, fault in texts.faults.items()},
        groups if texts.groups is None else texts.groups[of_text],
    )


def describe_cuts(cut_off: int, of: str, length: int, added: int) -> str:
    """Return how many texts are cut, of so many in words, to `length` tokens, `added` special ones among them."""
    to = describe_length(length, added)
    return f"{format_things(cut_off, f'of {of} is', f'of {of} are')} cut to {'' if added else 'the first '}{to}"


def describe_length(length: int, added: int) -> str:
    among = f", {format_things(added, 'special one')} among them" if added else ""
    return f"{length:,} tokens{among}"


def _fill(
    examples: Iterable[tuple[np.ndarray, np.ndarray]], count: int, length: int, *, with_types: bool
) -> np.ndarray:
    """Return the tokens of `count` examples, int32 [count, length], padded behind; with types [count, 2, length].

    Raises:
        DataError: They have no room in memory.
    """
    rows = 2 if with_types else 1
    if (size := COPIES * _BYTES * count * rows * length) > (spare := spare_bytes()):
        raise DataError(
            f"data.length={length}: {count:,} examples of so many tokens take {format_bytes(size)}, and "
            f"{format_bytes(spare)} of memory are free; give a smaller data.length"
        )
    filled = np.zeros([count, rows, length], np.int32)
    filled[:, 0] = PADDING
    for row, example in zip(filled, examples, strict=True):
        for part, values in zip(row, example, strict=False):
            part[: len(values)] = values
    filled[(filled[:, 0] == PADDING).all(axis=1), 0, 0] = _INSTEAD
    return filled if with_types else filled[:, 0]
