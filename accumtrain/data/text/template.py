"""`Template`: the special tokens around one text or two, as the post-processor of a tokenizer's file says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_TYPES = 256  # types of tokens are below
_KNOWN = "TemplateProcessing, BertProcessing, RobertaProcessing or ByteLevel"


class UnknownTemplateError(Exception):
    """A post-processor does something else than to put special tokens around texts."""


class Piece(NamedTuple):
    """A piece of an example, whose tokens have one type: a text, by its number, or some special tokens."""

    text: int | None
    ids: tuple[int, ...]
    type: int


_TEXT, _OTHER = Piece(0, (), 0), Piece(1, (), 1)


@dataclass(frozen=True)
class Template:
    """The pieces of an example, of one text or a pair. By default it is the texts alone."""

    single: tuple[Piece, ...] = (_TEXT,)
    pair: tuple[Piece, ...] = (_TEXT, _OTHER)

    @property
    def ids(self) -> frozenset[int]:
        """The special tokens that are put around texts."""
        return frozenset(number for part in (*self.single, *self.pair) for number in part.ids)

    @property
    def separates(self) -> bool:
        """True if a special token stands between the texts of a pair."""
        first, second = (place for place, part in enumerate(self.pair) if part.text is not None)
        return any(part.ids for part in self.pair[first:second])

    @property
    def ends(self) -> bool:
        """True if a special token stands behind a single text."""
        return bool(self.single[-1].ids)

    @property
    def opening(self) -> Template:
        """The same without what stands behind a single text, which is to be continued."""
        place = next(place for place, part in enumerate(self.single) if part.text is not None)
        return Template(self.single[: place + 1])

    def ended_by(self, token: int) -> Template:
        """Return the same with one more special token behind."""
        return Template(*((*parts, Piece(None, (token,), parts[-1].type)) for parts in (self.single, self.pair)))

    @property
    def count_before(self) -> int:
        """The number of special tokens before a single text."""
        return self.opening.count_added(1)

    def count_added(self, texts: int) -> int:
        """Return the number of special tokens around one text or two."""
        return sum(len(part.ids) for part in self._parts(texts))

    def frame(self, texts: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of an example of one text or two, at most `length`, and their types: int32 [n] each.

        Special tokens are kept, and the longer text of a pair is shortened first. `length` has room for a token of
        each text.
        """
        kept = shorten([len(text) for text in texts], length - self.count_added(len(texts)))
        parts = [
            part.ids if part.text is None else texts[part.text][: kept[part.text]] for part in self._parts(len(texts))
        ]
        types = [part.type for part in self._parts(len(texts))]
        ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
        return ids, np.repeat(np.array(types, np.int32), [len(part) for part in parts])

    def _parts(self, texts: int) -> tuple[Piece, ...]:
        return self.single if texts == 1 else self.pair


def shorten(sizes: Sequence[int], room: int) -> list[int]:
    """Return how many tokens are kept of each of one text or two, in `room` tokens, the longer shortened first.

    Of two that are as long as each other, the second keeps the odd token, as by longest_first of the library.
    """
    if sum(sizes) <= room:
        return list(sizes)
    if len(sizes) == 1:
        return [room]
    first, second = sizes
    shorter = min(first, second, room // 2)
    return [room - shorter, shorter] if first > second else [shorter, room - shorter]


# ---- of a tokenizer's JSON ----


def read_template(post_processor: Mapping[str, Any] | None) -> Template:
    """Return the template that a post-processor is, as the library tokenizers writes it.

    Raises:
        UnknownTemplateError: It does something else, which the message says.
    """
    processors = [each for each in _flatten(post_processor) if each["type"] != "ByteLevel"]  # which moves no token
    if not processors:
        return Template()
    if len(processors) > 1:
        raise UnknownTemplateError(
            f"its post-processor is several, {' and '.join(each['type'] for each in processors)}"
        )
    (processor,) = processors
    match processor["type"]:
        case "TemplateProcessing":
            special = processor["special_tokens"]
            return Template(*(_read_parts(processor[key], special, texts) for key, texts in _TEXTS_OF.items()))
        case "BertProcessing":
            begin, end = _read_ends(processor)
            of_other = end._replace(type=1)
            return Template((begin, _TEXT, end), (begin, _TEXT, end, _OTHER, of_other))
        case "RobertaProcessing":
            begin, end = _read_ends(processor)
            return Template((begin, _TEXT, end), (begin, _TEXT, end, end, _OTHER._replace(type=0), end))
    raise UnknownTemplateError(f"its post-processor is {processor['type']}, and not {_KNOWN}")


_TEXTS_OF = {"single": "A", "pair": "AB"}  # by the key of a template, the names of its texts


def _flatten(processor: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the processors of a sequence, in their order; itself if it is none."""
    if processor is None:
        return []
    if processor["type"] != "Sequence":
        return [processor]
    return [each for inner in processor["processors"] for each in _flatten(inner)]


def _read_ends(processor: Mapping[str, Any]) -> tuple[Piece, Piece]:
    """Return the special token before a text, and that behind it."""
    return Piece(None, (processor["cls"][1],), 0), Piece(None, (processor["sep"][1],), 0)


def _read_parts(pieces: Sequence[Mapping[str, Any]], special: Mapping[str, Any], texts: str) -> tuple[Piece, ...]:
    parts, named = list[Piece](), list[str]()
    for piece in pieces:
        ((kind, content),) = piece.items()
        if kind == "Sequence":
            named.append(content["id"])
            parts.append(Piece("AB".index(content["id"]), (), content["type_id"]))
        else:
            parts.append(Piece(None, tuple(special[content["id"]]["ids"]), content["type_id"]))
    if sorted(named) != list(texts):
        raise UnknownTemplateError(
            f"the template of its post-processor has {', '.join(named) or 'no text'} where {' and '.join(texts)} stand "
            "once"
        )
    if (largest := max(part.type for part in parts)) >= _TYPES:
        raise UnknownTemplateError(f"the template of its post-processor has the type {largest}, from 0..{_TYPES - 1}")
    return tuple(parts)
