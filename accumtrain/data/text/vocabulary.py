"""`Vocabulary`: the tokens of a data set of texts, and the way from a text to their ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

BYTES = "bytes"  # a tokenizer: the bytes of UTF-8


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that an example is made of.

    Attributes:
        size: their number; ids are 0..size-1.
        mask: id of the mask token.
        special: ids that are never masked nor drawn at random, the mask among them.
        tokenizer: `bytes`; or empty for ids without a tokenizer.
    """

    size: int
    mask: int
    special: tuple[int, ...]
    tokenizer: str = BYTES

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special ones. Bytes that are no UTF-8 become U+FFFD."""
        return bytes(number for number in ids if number not in self.special).decode(errors="replace")

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self) | {"special": list(self.special)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Vocabulary:
        """Return the vocabulary that `as_json` has described."""
        return cls(**{**content, "special": tuple(content["special"])})
