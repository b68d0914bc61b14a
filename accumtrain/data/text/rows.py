"""Documents as rows of pairs of a token and the next one, which a causal model learns.

A document is a text with the special tokens of its template, or a prompt with its answer. No pair is left out or stands
twice: of each document all tokens but the first are told once, or of an answer those behind its prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from accumtrain.console import format_bytes
from accumtrain.data.source import BadExample, Split, UnreadableExample, hash_arrays
from accumtrain.data.text.encode import Encoded, check_some_are_usable, raise_first
from accumtrain.data.text.token_split import COPIES, TokenSplit
from accumtrain.errors import DataError
from accumtrain.fields import NONE
from accumtrain.process.machine import spare_bytes

TOKENS, TARGETS, DOCUMENTS = range(3)  # the parts of a row


@dataclass(frozen=True)
class Documents:
    """Texts with all that stands around them.

    Attributes:
        names: Those of the texts.
        tokens: Those of each, int32 [any].
        given: The number of tokens at the beginning of each that are not told: the first one, or a prompt.
        sizes: The bytes of each that the next tokens stand for; None where they are not known.
        groups: The number of each text's group, int32 [N]; None: each is by itself.
        left_out: The texts that can't be used.
        single: The number of those that have a single token, and none behind it. They are left out.
    """

    names: Sequence[str]
    tokens: Sequence[np.ndarray]
    given: Sequence[int]
    sizes: Sequence[int | None]
    groups: np.ndarray | None
    left_out: Sequence[BadExample]
    single: int = 0

    @property
    def counts(self) -> np.ndarray:
        """The number of pairs of each, int64 [N]."""
        return np.array([len(own) - 1 for own in self.tokens], np.int64)

    @property
    def digest(self) -> str:
        """A hash of all texts."""
        return hash_arrays(self.counts, np.array(self.given, np.int64), *self.tokens)

    @property
    def bytes_told(self) -> int | None:
        """The bytes of all texts that the next tokens stand for; None if they are not known."""
        known = [size for size in self.sizes if size is not None]
        return sum(known) if len(known) == len(self.sizes) else None

    def divided(self, held: np.ndarray) -> tuple[Documents, Documents]:
        """Return the texts that are left, and those of a mask, bool [N]. Those that can't be used stay."""
        return self._take(np.flatnonzero(~held), self.left_out), self._take(np.flatnonzero(held), ())

    def _take(self, indices: np.ndarray, left_out: Sequence[BadExample]) -> Documents:
        chosen = indices.tolist()
        return Documents(
            [self.names[index] for index in chosen],
            [self.tokens[index] for index in chosen],
            [self.given[index] for index in chosen],
            [self.sizes[index] for index in chosen],
            None if self.groups is None else self.groups[indices],
            left_out,
        )


class RowSplit(TokenSplit):
    """Rows of documents in memory, [size, 3, T]: tokens, their targets, and the numbers of their documents.

    Attributes:
        bytes_told: Those of the texts that the targets stand for; None if they are not known.
        packed: Rows may be of several documents.
    """

    def __init__(
        self,
        rows: np.ndarray,
        names: Sequence[str],
        bytes_told: int | None,
        left_out: Sequence[BadExample],
        *,
        packed: bool,
    ) -> None:
        super().__init__(rows, None, names)
        self.bytes_told, self.left_out, self.packed = bytes_told, left_out, packed

    @property
    def targets(self) -> int:
        """The number of targets."""
        return int((self.tokens[:, TARGETS] != NONE).sum())

    def joined_with(self, others: Sequence[Split]) -> RowSplit:
        splits = [self, *(split for split in others if isinstance(split, RowSplit))]
        known = [split.bytes_told for split in splits if split.bytes_told is not None]
        return RowSplit(
            np.concatenate([split.tokens for split in splits]),
            [name for split in splits for name in split.names],
            sum(known) if len(known) == len(splits) else None,
            [example for split in splits for example in split.left_out],
            packed=self.packed,
        )


def make_documents(texts: Encoded, *, skips: bool) -> Documents:
    """Return texts, or prompts and their answers, as documents.

    Raises:
        DataError: A text can't be used, and may not be left out; or none can be used.
    """
    added = texts.template.count_added(1)
    alone = {
        index: UnreadableExample(texts.names[index], "has a single token, and none behind it to learn")
        for index, own in enumerate(texts.texts)
        if index not in texts.faults and sum(map(len, own)) + added < 2
    }
    marked = replace(texts, faults={**texts.faults, **alone})
    if not skips:
        raise_first(texts.faults)
    check_some_are_usable(marked)
    kept = marked.take(np.array([index for index in range(len(texts.ids)) if index not in marked.faults], np.int64))
    left_out = [texts.faults[index] for index in sorted(texts.faults)]
    frame, before = texts.template.frame, texts.template.count_before
    if kept.seconds is None and not added:
        tokens = [*kept.ids]  # not framed, as that copies them
    else:
        tokens = [frame([np.concatenate(own)], sum(map(len, own)) + added)[0] for own in kept.texts]
    given = [1] * len(tokens) if texts.seconds is None else [before + len(prompt) for prompt in kept.ids]
    return Documents(kept.names, tokens, given, _sizes_told(kept), kept.groups, left_out, len(alone))


def _sizes_told(texts: Encoded) -> list[int | None]:
    if texts.sizes is None:
        return [None] * len(texts.ids)
    if texts.template.count_before or texts.seconds is not None:
        return [*texts.sizes]
    return [None if first is None else size - first for size, first in zip(texts.sizes, texts.firsts, strict=True)]


def fill_rows(documents: Documents, length: int, ids: int, *, packing: bool) -> RowSplit:
    """Return the rows of documents, of `length` pairs each, in their order. Their type is the least for such numbers.

    With `packing` the documents stand one behind the other, and only the last row has padding. Without, each begins a
    row, and goes on in as many as it needs.

    Args:
        ids: the number of tokens of the vocabulary.

    Raises:
        DataError: They have no room in memory.
    """
    counts = documents.counts
    needed = -(-counts // length)
    size = -(-int(counts.sum()) // length) if packing else int(needed.sum())
    dtype = np.min_scalar_type(-max(ids, length))  # with room for NONE
    if (taken := COPIES * 3 * dtype.itemsize * size * length) > (spare := spare_bytes()):
        raise DataError(
            f"data.length={length}: {size:,} rows of so many tokens take {format_bytes(taken)}, and "
            f"{format_bytes(spare)} of memory are free; give fewer texts"
        )
    room = counts if packing else needed * length
    starts = np.cumsum(room) - room
    rows = np.empty([size, 3, length], dtype)
    rows[:, TOKENS] = _lay((tokens[:-1] for tokens in documents.tokens), starts, size, length)
    told = (tokens[given:] for tokens, given in zip(documents.tokens, documents.given, strict=True))
    rows[:, TARGETS] = _lay(told, starts + documents.given - 1, size, length)
    numbers = _lay((np.full(count, number) for number, count in enumerate(counts.tolist())), starts, size, length)
    firsts, lasts = numbers[:, 0].copy(), numbers.max(axis=1)
    rows[:, DOCUMENTS] = np.subtract(numbers, firsts[:, np.newaxis], out=numbers, where=numbers != NONE)
    del numbers  # as large as the rows
    names = [
        documents.names[first] if first == last else f"{documents.names[first]} to {documents.names[last]}"
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]
    return RowSplit(rows, names, documents.bytes_told, documents.left_out, packed=packing)


def _lay(parts: Iterable[np.ndarray], starts: np.ndarray, size: int, length: int) -> np.ndarray:
    """Return int32 [size, length], whose positions, one row behind the other, have the parts from `starts` on."""
    laid = np.full(size * length, NONE, np.int32)
    for part, start in zip(parts, starts.tolist(), strict=True):
        laid[start : start + len(part)] = part
    return laid.reshape(size, length)
