"""`Vocabulary`: the tokens of texts as ids, and the tokenizer that makes them of a text.

Tokens are int32 [N, T], and PADDING stands where there is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypedDict

from accumtrain.console import format_bytes
from accumtrain.data.local_files import find_file_fault
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import Range, convert
from accumtrain.process.machine import spare_bytes
from accumtrain.runs.run import REMEDY

PADDING = -1
BYTES = "bytes"  # the tokenizer whose tokens are the bytes of UTF-8
MASK = "[MASK]"  # in a text, in the place of a token
LARGEST = 2**31 - 2  # id
_BYTES = 256
_MASKS = (MASK, "<mask>")  # as tokenizers name it
_PACKAGE = "tokenizers"
_LONG, _BYTES_OF_CHARACTER = 2**20, 160  # of a text, and of memory while the library makes tokens of it
_MOST_GROWTH = 64  # times the length of a text; those of trained tokenizers are below 10


_Id = Annotated[int, Range(0, LARGEST, closed=True)]


class _Kept(TypedDict):
    """A vocabulary in inputs.json."""

    size: Annotated[int, Range(1, LARGEST + 1, closed=True)]
    mask: _Id
    special: list[_Id]
    tokenizer: str


class UnencodableText(Exception):
    """The tokenizer has no tokens for a text, such as a word without a token where none stands for unknown ones."""


@dataclass(frozen=True)
class Vocabulary:
    """The ids of tokens, and the tokenizer.

    Attributes:
        size: Ids are 0..size-1, that of the mask among them.
        mask: The id of the mask token.
        special: Ids that are never masked nor drawn at random, that of the mask among them.
        tokenizer: "bytes", the JSON of a file of the library tokenizers, or "" for ids without a tokenizer.
    """

    size: int
    mask: int
    special: tuple[int, ...]
    tokenizer: str = ""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, which are those of the tokenizer's file. None are put before and behind them.

        Raises:
            ConfigError: There is no tokenizer, or its library is not installed.
            UnencodableText: The tokenizer has no tokens for it, or it is too long for the memory.
        """
        if self.tokenizer == BYTES:
            return list(text.encode())
        if not self.tokenizer:
            raise ConfigError(
                "these tokens are ids without a tokenizer, so texts can't be read: give ids, as tokens [N, T] of an "
                ".npz file"
            )
        library = self._library
        if len(text) > _LONG and (size := len(text) * _BYTES_OF_CHARACTER) > (spare := spare_bytes()):
            raise UnencodableText(f"they take up to {format_bytes(size)}, {format_bytes(spare)} of memory are free")
        with _library_errors(UnencodableText):
            ids: list[int] = library.encode(text, add_special_tokens=False).ids
        return ids

    def encode_with_masks(self, text: str) -> list[int]:
        """Return the tokens of a text in which [MASK] stands for the mask token. Raise what `encode` raises."""
        own = self._own_mask
        if own is not None:
            return self.encode(text.replace(MASK, own))
        first, *others = text.split(MASK)
        ids = self.encode(first)
        for part in others:
            ids += [self.mask, *self.encode(part)]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens without those that are PADDING; ids without a tokenizer as numbers."""
        known = [int(number) for number in ids if number != PADDING]
        if self.tokenizer == BYTES:
            return b"".join(MASK.encode() if number == self.mask else bytes([number]) for number in known).decode(
                errors="replace"
            )
        if not self.tokenizer:
            return " ".join(map(str, known))
        if self._library.id_to_token(self.mask) is not None:
            return self._decode(known)
        parts = (list(part) for _, part in groupby(known, self.mask.__eq__))
        return " ".join(" ".join([MASK] * len(part)) if part[0] == self.mask else self._decode(part) for part in parts)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._library.decode(ids, skip_special_tokens=False)
        return text

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, from which `from_json` makes it again."""
        return {**asdict(self), "special": list(self.special)}

    @classmethod
    def from_json(cls, values: Any, key: str) -> Vocabulary:
        """Return what `as_json` has returned. Raise ConfigError, which begins with the key, for anything else."""
        found: _Kept = convert(_Kept, values, key)
        for name, ids in (("mask", [found["mask"]]), ("special", found["special"])):
            if max(ids, default=0) >= found["size"]:
                raise ConfigError(f"{key}.{name}={max(ids)}: must be below {key}.size={found['size']}")
        if found["tokenizer"] == BYTES and found["size"] != _BYTES + 1:
            raise ConfigError(f"{key}.size={found['size']}: must be {_BYTES + 1} of {key}.tokenizer={BYTES}")
        return cls(found["size"], found["mask"], tuple(found["special"]), found["tokenizer"])

    @cached_property
    def _library(self) -> Any:
        _check_installed("the run's tokenizer")
        try:
            opened = _open(self.tokenizer)
            if max(opened.get_vocab().values(), default=0) >= self.size:
                raise _BadTokenizer(f"it has ids beyond the {self.size:,} of the run")
        except _BadTokenizer as error:
            raise CheckpointError(f"the tokenizer of the run is damaged ({error}); {REMEDY}") from error
        return opened

    @cached_property
    def _own_mask(self) -> str | None:
        """The text that the tokenizer reads as the mask token; None if there is none."""
        if self.tokenizer in ("", BYTES):
            return None
        own: str | None = self._library.id_to_token(self.mask)
        return own if own is not None and self.encode(own) == [self.mask] else None


def open_vocabulary(tokenizer: str) -> Vocabulary:
    """Return the vocabulary of a tokenizer: "bytes", or the path of a tokenizer.json of the library tokenizers.

    Its token [MASK] or <mask> is the mask. Without one, an id is added behind the last.

    Raises:
        ConfigError: The file is not there, is no such file, or the library is not installed.
    """
    if tokenizer == BYTES:
        return Vocabulary(_BYTES + 1, _BYTES, (_BYTES,), BYTES)
    given = f"data.tokenizer={tokenizer}"
    if fault := find_file_fault(Path(tokenizer)):
        raise ConfigError(f"{given} {fault}: give the tokenizer.json of the library tokenizers, or bytes")
    _check_installed(given)
    try:
        opened = _open(Path(tokenizer).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, _BadTokenizer) as error:
        raise ConfigError(
            f"{given} is no file of the library tokenizers ({' '.join(str(error).split())[:100]}): give its "
            "tokenizer.json, or bytes"
        ) from error
    ids: dict[str, int] = opened.get_vocab()
    if not ids:
        raise ConfigError(f"{given} has no token: train the tokenizer before, or give bytes")
    end = max(ids.values()) + 1
    mask = next((ids[name] for name in _MASKS if name in ids), end)
    if max(end, mask + 1) > LARGEST:
        raise ConfigError(f"{given} has the id {end - 1}: the largest one is {LARGEST - 1}; number its tokens anew")
    special = {number for number, token in opened.get_added_tokens_decoder().items() if token.special}
    return Vocabulary(max(end, mask + 1), mask, tuple(sorted(special | {mask})), opened.to_str())


def number_ids(size: int) -> Vocabulary:
    """Return the vocabulary of ids 0..size-1 without a tokenizer, behind which the mask is added."""
    return Vocabulary(size + 1, size, (size,))


def _check_installed(given: str) -> None:
    if find_spec(_PACKAGE) is None:
        raise ConfigError(f"{given} needs the library {_PACKAGE}: pip install 'accumtrain[{_PACKAGE}]'")


# ---- the library tokenizers ----


class _BadTokenizer(Exception):
    """A text is no tokenizer, or one that makes of a text a much longer one."""


def _open(text: str) -> Any:
    """Return a tokenizer of its JSON. It cuts and pads no texts.

    Raises:
        _BadTokenizer: It is none, or its replacements can make a text _MOST_GROWTH times as long.
    """
    from tokenizers import Tokenizer  # an extra

    with _library_errors(_BadTokenizer):
        tokenizer = Tokenizer.from_str(text)
    content = json.loads(text)
    growth = math.prod(_find_growth(content.get(name)) for name in ("normalizer", "pre_tokenizer", "decoder"))
    if growth > _MOST_GROWTH:
        raise _BadTokenizer(f"its replacements make a text up to {growth:.3g} times as long")
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # which draws other tokens each time
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _find_growth(part: Any) -> float:
    """Return how many times as long a text can become by all replacements in a part of a tokenizer's JSON."""
    if isinstance(part, list):
        return math.prod(map(_find_growth, part))
    if not isinstance(part, dict):
        return 1.0
    inside = math.prod(_find_growth(value) for value in part.values())
    if part.get("type") == "Prepend":
        return 1.0 + len(part["prepend"])
    if part.get("type") != "Replace":
        return inside
    plain = part["pattern"].get("String")
    return inside * (max(1.0, len(part["content"]) / len(plain)) if plain else 1.0 + len(part["content"]))


@contextmanager
def _library_errors(kind: type[Exception]) -> Iterator[None]:
    """Turn an error of the library into one of `kind`."""
    try:
        yield
    except BaseException as error:
        # of its own kinds one is a plain Exception, the other, of a panic, is not even that, and has no name to import
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise kind(" ".join(str(error).split())[:100]) from error
