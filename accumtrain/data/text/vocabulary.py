"""`Vocabulary`: the tokens of texts as ids, and the tokenizer that makes them of a text.

Tokens are int32 [N, T], and PADDING stands where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any, TypedDict

from accumtrain.console import format_bytes
from accumtrain.data.text.template import Template, UnknownTemplateError, read_template
from accumtrain.data.text.tokenizer_files import (
    BadTokenizerError,
    check_installed,
    library_errors,
    open_named_tokenizer,
    open_tokenizer,
)
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
_LONG, _BYTES_OF_CHARACTER = 2**20, 160  # of a text, and of memory while the library makes tokens of it

_Id = Annotated[int, Range(0, LARGEST, closed=True)]


class _Needed(TypedDict):
    size: Annotated[int, Range(1, LARGEST + 1, closed=True)]
    mask: _Id
    special: list[_Id]
    tokenizer: str


class _Kept(_Needed, total=False):
    """A vocabulary in inputs.json. Older ones lack `framed`: their texts have no special tokens around them."""

    framed: bool


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
        framed: The tokenizer's post-processor puts special tokens around texts.
    """

    size: int
    mask: int
    special: tuple[int, ...]
    tokenizer: str = ""
    framed: bool = False

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, which are those of the tokenizer's file, without those of `template`.

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
        with library_errors(UnencodableText):
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

    @property
    def adds_mask(self) -> bool:
        """True if the mask is an id behind those of the tokenizer, which no text has."""
        return self.mask == self.size - 1 and not any(json.dumps(name) in self.tokenizer for name in _MASKS)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, from which `from_json` makes it again."""
        values = {**asdict(self), "special": list(self.special)}
        return values if self.framed else {key: value for key, value in values.items() if key != "framed"}

    @classmethod
    def from_json(cls, values: Any, key: str) -> Vocabulary:
        """Return what `as_json` has returned. Raise ConfigError, which begins with the key, for anything else."""
        found: _Kept = convert(_Kept, values, key)
        for name, ids in (("mask", [found["mask"]]), ("special", found["special"])):
            if max(ids, default=0) >= found["size"]:
                raise ConfigError(f"{key}.{name}={max(ids)}: must be below {key}.size={found['size']}")
        if found["tokenizer"] == BYTES and found["size"] != _BYTES + 1:
            raise ConfigError(f"{key}.size={found['size']}: must be {_BYTES + 1} of {key}.tokenizer={BYTES}")
        framed = found.get("framed", False)
        if framed and found["tokenizer"] in ("", BYTES):
            raise ConfigError(f"{key}.framed=true: must be false of {key}.tokenizer={found['tokenizer'] or repr('')}")
        return cls(found["size"], found["mask"], tuple(found["special"]), found["tokenizer"], framed)

    @cached_property
    def template(self) -> Template:
        """The special tokens around texts. Raise what `encode` raises."""
        if not self.framed:
            return Template()
        try:
            return _read_template(self._library, self.size)
        except BadTokenizerError as error:
            raise _explain_damage(error) from error

    @cached_property
    def _library(self) -> Any:
        check_installed("the run's tokenizer")
        try:
            opened = open_tokenizer(self.tokenizer)
            if max(opened.get_vocab().values(), default=0) >= self.size:
                raise BadTokenizerError(f"it has ids beyond the {self.size:,} of the run")
        except BadTokenizerError as error:
            raise _explain_damage(error) from error
        return opened

    @cached_property
    def _own_mask(self) -> str | None:
        """The text that the tokenizer reads as the mask token; None if there is none."""
        if self.tokenizer in ("", BYTES):
            return None
        own: str | None = self._library.id_to_token(self.mask)
        return own if own is not None and self.encode(own) == [self.mask] else None


def _explain_damage(error: Exception) -> CheckpointError:
    return CheckpointError(f"the tokenizer of the run is damaged ({error}); {REMEDY}")


def open_vocabulary(tokenizer: str) -> Vocabulary:
    """Return the vocabulary of a tokenizer: "bytes", or the path of its file or folder, as `open_named_tokenizer` says.

    Its token [MASK] or <mask> is the mask. Without one, an id is added behind the last.

    Raises:
        ConfigError: It can't be opened, or puts something else than special tokens around texts.
    """
    if tokenizer == BYTES:
        return Vocabulary(_BYTES + 1, _BYTES, (_BYTES,), BYTES)
    given = f"data.tokenizer={tokenizer}"
    opened = open_named_tokenizer(tokenizer)
    ids: dict[str, int] = opened.get_vocab()
    if not ids:
        raise ConfigError(f"{given} has no token: train the tokenizer before, or give bytes")
    end = max(ids.values()) + 1
    mask = next((ids[name] for name in _MASKS if name in ids), end)
    if max(end, mask + 1) > LARGEST:
        raise ConfigError(f"{given} has the id {end - 1}: the largest one is {LARGEST - 1}; number its tokens anew")
    try:
        template = _read_template(opened, end)
    except BadTokenizerError as error:
        raise ConfigError(
            f"{given} can't be used: {error}; set post_processor in its JSON to null, or give another"
        ) from error
    special = {number for number, token in opened.get_added_tokens_decoder().items() if token.special}
    return Vocabulary(
        max(end, mask + 1),
        mask,
        tuple(sorted(special | template.ids | {mask})),
        opened.to_str(),
        framed=template != Template(),
    )


def number_ids(size: int) -> Vocabulary:
    """Return the vocabulary of ids 0..size-1 without a tokenizer, behind which the mask is added."""
    return Vocabulary(size + 1, size, (size,))


def _read_template(library: Any, size: int) -> Template:
    """Return the template of a tokenizer whose ids are below `size`. Raise BadTokenizerError if it has another."""
    try:
        template = read_template(json.loads(library.to_str())["post_processor"])
    except UnknownTemplateError as error:
        raise BadTokenizerError(str(error)) from error
    if (largest := max(template.ids, default=0)) >= size:
        raise BadTokenizerError(f"its post-processor adds the id {largest}, and its ids are 0..{size - 1}")
    return template
