"""`Vocabulary`: the tokens of texts as ids, and the tokenizer that makes them of a text.

Tokens are int32 [N, T], and PADDING stands where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypedDict

from accumtrain.data.local_files import find_file_fault
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import Range, convert
from accumtrain.runs.run import REMEDY

PADDING = -1
BYTES = "bytes"  # the tokenizer whose tokens are the bytes of UTF-8
MASK = "[MASK]"  # in a text, in the place of a token
LARGEST = 2**31 - 2  # id
_BYTES = 256
_MASKS = (MASK, "<mask>")  # as tokenizers name it
_PACKAGE = "tokenizers"


_Id = Annotated[int, Range(0, LARGEST, closed=True)]


class _Kept(TypedDict):
    """A vocabulary in inputs.json."""

    size: Annotated[int, Range(1, LARGEST + 1, closed=True)]
    mask: _Id
    special: list[_Id]
    tokenizer: str


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
        """Return the tokens of a text. A tokenizer puts none before and behind them.

        Raises:
            ConfigError: There is no tokenizer, or its library is not installed.
        """
        if self.tokenizer == BYTES:
            return list(text.encode())
        if not self.tokenizer:
            raise ConfigError(
                "these tokens are ids without a tokenizer, so texts can't be read: give ids, as tokens [N, T] of an "
                ".npz file"
            )
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids

    def encode_with_masks(self, text: str) -> list[int]:
        """Return the tokens of a text in which [MASK] stands for the mask token. Raise what `encode` raises."""
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
        text: str = self._library.decode(known, skip_special_tokens=False)
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
        from tokenizers import Tokenizer  # an extra

        try:
            tokenizer = Tokenizer.from_str(self.tokenizer)
        except Exception as error:  # the library raises no other
            raise CheckpointError(f"the tokenizer of the run is damaged ({error}); {REMEDY}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def open_vocabulary(tokenizer: str) -> Vocabulary:
    """Return the vocabulary of a tokenizer: "bytes", or the path of a tokenizer.json of the library tokenizers.

    Its token [MASK] is the mask. Without one, an id is added behind the last.

    Raises:
        ConfigError: The file is not there, is no such file, or the library is not installed.
    """
    if tokenizer == BYTES:
        return Vocabulary(_BYTES + 1, _BYTES, (_BYTES,), BYTES)
    given = f"data.tokenizer={tokenizer}"
    if fault := find_file_fault(Path(tokenizer)):
        raise ConfigError(f"{given} {fault}: give the tokenizer.json of the library tokenizers, or bytes")
    _check_installed(given)
    from tokenizers import Tokenizer  # an extra

    try:
        opened = Tokenizer.from_str(Path(tokenizer).read_text(encoding="utf-8"))
    except Exception as error:  # the library raises no other
        raise ConfigError(
            f"{given} is no file of the library tokenizers ({' '.join(str(error).split())[:100]}): give its "
            "tokenizer.json, or bytes"
        ) from error
    if not opened.get_vocab_size():
        raise ConfigError(f"{given} has no token: train the tokenizer before, or give bytes")
    named = next((name for name in _MASKS if opened.token_to_id(name) is not None), MASK)
    opened.add_special_tokens([named])  # changes nothing of a token that is there, but that it is special
    ids: dict[str, int] = opened.get_vocab()
    special = {number for number, token in opened.get_added_tokens_decoder().items() if token.special}
    return Vocabulary(max(ids.values()) + 1, ids[named], tuple(sorted(special | {ids[named]})), opened.to_str())


def number_ids(size: int) -> Vocabulary:
    """Return the vocabulary of ids 0..size-1 without a tokenizer, behind which the mask is added."""
    return Vocabulary(size + 1, size, (size,))


def _check_installed(given: str) -> None:
    if find_spec(_PACKAGE) is None:
        raise ConfigError(f"{given} needs the library {_PACKAGE}: pip install 'accumtrain[{_PACKAGE}]'")
