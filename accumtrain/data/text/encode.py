"""Texts as tokens, each of its own length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from accumtrain.data.source import BadExample, UnreadableExample
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.text.texts import Text
from accumtrain.data.text.vocabulary import UnencodableText
from accumtrain.errors import DataError


@dataclass(frozen=True)
class Encoded:
    """N texts as tokens.

    Attributes:
        names: Their names in messages.
        ids: The tokens of each, int32 [any].
        labels: The class of each, int32 [N], UNREADABLE for a text that is left out. Or float32 [N, T].
        faults: Why texts are left out, by their indices.
        groups: The number of each text's group, int32 [N]; None: each is by itself.
    """

    names: Sequence[str]
    ids: Sequence[np.ndarray]
    labels: np.ndarray
    faults: Mapping[int, BadExample] = field(default_factory=dict)
    groups: np.ndarray | None = None

    def take(self, indices: np.ndarray) -> Encoded:
        """Return the texts at indices, integers [n]."""
        chosen = indices.tolist()
        return Encoded(
            [self.names[index] for index in chosen],
            [self.ids[index] for index in chosen],
            self.labels[indices],
            {new: self.faults[index] for new, index in enumerate(chosen) if index in self.faults},
            None if self.groups is None else self.groups[indices],
        )

    def tell_left_out(self) -> str:
        """Return how many texts are left out, and why the first is, to be read after a message; empty of none."""
        if not self.faults:
            return ""
        return f"; {len(self.faults):,} of {len(self.ids):,} can't be used, the first: {_first(self.faults).fault}"

    def check_some_are_usable(self) -> None:
        """Raise DataError if all are left out."""
        if self.faults and len(self.faults) == len(self.ids):
            first = _first(self.faults)
            raise DataError(f"none of {len(self.ids):,} texts can be used, the first: {first.fault}: {first.remedy}")


def encode_texts(
    texts: Iterable[Text], encode: Callable[[str], list[int]], *, skips: bool
) -> tuple[Encoded, list[str]]:
    """Return texts as tokens, without labels, and the name of the class of each.

    Args:
        encode: returns the tokens of a text.
        skips: leave out texts that can't be used.

    Raises:
        DataError: A text can't be used, and may not be left out; or no text can be used.
    """
    names, ids, kinds, faults = list[str](), list[np.ndarray](), list[str](), dict[int, BadExample]()
    for index, text in enumerate(texts):
        own, fault = _encode(text, encode)
        if fault is not None:
            faults[index] = fault
        names.append(text.name)
        ids.append(np.array(own, np.int32))
        kinds.append(text.kind)
        if not skips:
            raise_first(faults)
    encoded = Encoded(names, ids, no_label(len(ids)), faults)
    encoded.check_some_are_usable()
    return encoded, kinds


def _encode(text: Text, encode: Callable[[str], list[int]]) -> tuple[list[int], BadExample | None]:
    """Return the tokens of a text, or the reason why it can't be used."""
    if text.fault:
        return [], text.fault
    try:
        ids = encode(text.content)
    except UnencodableText as error:
        remedy = "give the tokenizer a token for unknown ones, or remove it"
        return [], UnreadableExample(text.name, f"can't be made tokens of ({error})", remedy)
    return ids, None if ids else UnreadableExample(text.name, "holds no token")


def join_encoded(parts: Sequence[Encoded]) -> Encoded:
    """Return the texts of all parts, in their order."""
    starts = np.cumsum([0, *(len(part.ids) for part in parts)]).tolist()
    return Encoded(
        [name for part in parts for name in part.names],
        [ids for part in parts for ids in part.ids],
        np.concatenate([part.labels for part in parts]),
        {
            start + index: fault
            for start, part in zip(starts, parts, strict=False)
            for index, fault in part.faults.items()
        },
    )


def raise_first(faults: Mapping[int, BadExample]) -> None:
    """Raise the first fault, if there is one."""
    if faults:
        raise _first(faults)


def _first(faults: Mapping[int, BadExample]) -> BadExample:
    return faults[min(faults)]


def no_label(count: int) -> np.ndarray:
    """Return labels, int32 [count], of texts that have none."""
    return np.full(count, UNREADABLE, np.int32)
