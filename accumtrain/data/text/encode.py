"""Texts as tokens, each of its own length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from accumtrain.data.source import BadExample, UnreadableExample
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.text.template import Template
from accumtrain.data.text.texts import Text
from accumtrain.data.text.vocabulary import Tokenized, UnencodableText
from accumtrain.errors import DataError


@dataclass(frozen=True)
class Encoded:
    """N texts as tokens, or N pairs of texts.

    Attributes:
        names: Their names in messages.
        ids: The tokens of each, int32 [any]; of pairs those of the first text.
        labels: The class of each, int32 [N], UNREADABLE for a text that is left out. Or float32 [N, T].
        faults: Why texts are left out, by their indices.
        groups: The number of each text's group, int32 [N]; None: each is by itself.
        seconds: The tokens of the second text of each pair, int32 [any]; None of single texts.
        template: What is put around the tokens of each.
        sizes: The bytes of each text, of pairs those of the second; None of texts that are not known.
        firsts: The bytes that the first token of each stands for, None where they are not known.
    """

    names: Sequence[str]
    ids: Sequence[np.ndarray]
    labels: np.ndarray
    faults: Mapping[int, BadExample] = field(default_factory=dict)
    groups: np.ndarray | None = None
    seconds: Sequence[np.ndarray] | None = None
    template: Template = field(default_factory=Template)
    sizes: Sequence[int] | None = None
    firsts: Sequence[int | None] = ()

    @property
    def texts(self) -> list[tuple[np.ndarray, ...]]:
        """The tokens of each text, or of both texts of each pair."""
        return list(zip(self.ids, strict=True) if self.seconds is None else zip(self.ids, self.seconds, strict=True))

    @property
    def added(self) -> int:
        """The number of special tokens around each."""
        return self.template.count_added(1 if self.seconds is None else 2)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each, int32 [N], with special ones around them."""
        return np.array([sum(map(len, own)) + self.added for own in self.texts], np.int32)

    def take(self, indices: np.ndarray) -> Encoded:
        """Return the texts at indices, integers [n]."""
        chosen = indices.tolist()
        return Encoded(
            [self.names[index] for index in chosen],
            [self.ids[index] for index in chosen],
            self.labels[indices],
            {new: self.faults[index] for new, index in enumerate(chosen) if index in self.faults},
            None if self.groups is None else self.groups[indices],
            None if self.seconds is None else [self.seconds[index] for index in chosen],
            self.template,
            None if self.sizes is None else [self.sizes[index] for index in chosen],
            [self.firsts[index] for index in chosen] if self.firsts else (),
        )

    def tell_left_out(self) -> str:
        """Return how many texts are left out, and why the first is, to be read after a message; empty of none."""
        if not self.faults:
            return ""
        return f"; {len(self.faults):,} of {len(self.ids):,} can't be used, the first: {_first(self.faults).fault}"


def check_some_are_usable(*parts: Encoded) -> None:
    """Raise DataError if all texts of all parts are left out."""
    total, faults = sum(len(part.ids) for part in parts), [_first(part.faults) for part in parts if part.faults]
    if faults and sum(len(part.faults) for part in parts) == total:
        raise DataError(f"none of {total:,} texts can be used, the first: {faults[0].fault}: {faults[0].remedy}")


def encode_texts(
    texts: Iterable[Text], tokenize: Callable[[str], Tokenized], template: Template, *, skips: bool
) -> tuple[Encoded, list[str]]:
    """Return texts or pairs as tokens, without labels, and the name of the class of each. All may be left out.

    Args:
        tokenize: returns the tokens of a text.
        template: what is put around them.
        skips: leave out texts that can't be used.

    Raises:
        DataError: A text can't be used, and may not be left out.
    """
    names, ids, kinds, faults = list[str](), list[list[np.ndarray]](), list[str](), dict[int, BadExample]()
    sizes, first_sizes = list[int](), list[int | None]()
    for index, text in enumerate(texts):
        own, fault = _encode(text, tokenize)
        if fault is not None:
            faults[index] = fault
        names.append(text.name)
        ids.append([np.array(part.ids, np.int32) for part in own])
        kinds.append(text.kind)
        sizes.append(len((text.content if text.second is None else text.second).encode()))
        first_sizes.append(own[0].first)
        if not skips:
            raise_first(faults)
    firsts, *seconds = zip(*ids, strict=True) if ids else [()]
    second = seconds[0] if seconds else None
    encoded = Encoded(
        names, firsts, no_label(len(ids)), faults, seconds=second, template=template, sizes=sizes, firsts=first_sizes
    )
    return encoded, kinds


def _encode(text: Text, tokenize: Callable[[str], Tokenized]) -> tuple[list[Tokenized], BadExample | None]:
    """Return the tokens of a text, or of both of a pair, and the reason why it can't be used, if there is one."""
    contents = [text.content] if text.second is None else [text.content, text.second]
    nothing = [Tokenized([]) for _ in contents]
    if text.fault:
        return nothing, text.fault
    try:
        found = [tokenize(content) for content in contents]
    except UnencodableText as error:
        remedy = "give the tokenizer a token for unknown ones, or remove it"
        return nothing, UnreadableExample(text.name, f"can't be made tokens of ({error})", remedy)
    return found, None if all(part.ids for part in found) else UnreadableExample(text.name, "holds no token")


def raise_first(faults: Mapping[int, BadExample]) -> None:
    """Raise the first fault, if there is one."""
    if faults:
        raise _first(faults)


def _first(faults: Mapping[int, BadExample]) -> BadExample:
    return faults[min(faults)]


def no_label(count: int) -> np.ndarray:
    """Return labels, int32 [count], of texts that have none."""
    return np.full(count, UNREADABLE, np.int32)
