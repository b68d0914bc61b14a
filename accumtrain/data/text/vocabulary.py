"""`Vocabulary`: the tokens of texts as ids, and the tokenizer that makes them of a text.

Tokens are int32 [N, T], and PADDING stands where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any, NamedTuple, TypedDict

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
from accumtrain.fields import NONE, Range, convert, suggest_names
from accumtrain.process.machine import spare_bytes
from accumtrain.runs.run import REMEDY

PADDING = NONE  # behind the tokens of a text
BYTES = "bytes"  # the tokenizer whose tokens are the bytes of UTF-8
MASK = "[MASK]"  # in a text, in the place of a token
LARGEST = 2**31 - 2  # id
_BYTES = 256
_MASKS = (MASK, "<mask>")  # as tokenizers name it
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")  # as tokenizers name the end
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
    end: _Id


class Tokenized(NamedTuple):
    """The tokens of a text, and the bytes of the text that the first one stands for; None if these are not known."""

    ids: list[int]
    first: int | None = None


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
        end: The special token behind each text that the post-processor does not put there; None if there is none.
    """

    size: int
    mask: int
    special: tuple[int, ...]
    tokenizer: str = ""
    framed: bool = False
    end: int | None = None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, which are those of the tokenizer's file, without those of `template`.

        Raises:
            ConfigError: There is no tokenizer, or its library is not installed.
            UnencodableText: The tokenizer has no tokens for it, or it is too long for the memory.
        """
        return self.tokenize(text).ids

    def tokenize(self, text: str) -> Tokenized:
        """Return the tokens of a text as `encode` does, and the bytes of the first."""
        if self.tokenizer == BYTES:
            return Tokenized(list(text.encode()), 1)
        if not self.tokenizer:
            raise ConfigError(
                "these tokens are ids without a tokenizer, so texts can't be read: give ids, as tokens [N, T] of an "
                ".npz file"
            )
        library = self._library
        if len(text) > _LONG and (size := len(text) * _BYTES_OF_CHARACTER) > (spare := spare_bytes()):
            raise UnencodableText(f"they take up to {format_bytes(size)}, {format_bytes(spare)} of memory are free")
        with library_errors(UnencodableText):
            encoding = library.encode(text, add_special_tokens=False)
        return Tokenized(encoding.ids, _count_first(text, encoding))

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
        absent = {"framed": not self.framed, "end": self.end is None}
        return {key: value for key, value in values.items() if not absent.get(key)}

    @classmethod
    def from_json(cls, values: Any, key: str) -> Vocabulary:
        """Return what `as_json` has returned. Raise ConfigError, which begins with the key, for anything else."""
        found: _Kept = convert(_Kept, values, key)
        end = found.get("end")
        for name, ids in (
            ("mask", [found["mask"]]),
            ("special", found["special"]),
            ("end", [] if end is None else [end]),
        ):
            if max(ids, default=0) >= found["size"]:
                raise ConfigError(f"{key}.{name}={max(ids)}: must be below {key}.size={found['size']}")
        if found["tokenizer"] == BYTES and found["size"] != _BYTES + 1:
            raise ConfigError(f"{key}.size={found['size']}: must be {_BYTES + 1} of {key}.tokenizer={BYTES}")
        framed = found.get("framed", False)
        of_tokenizer = f"{key}.tokenizer={found['tokenizer'] or repr('')}"
        if framed and found["tokenizer"] in ("", BYTES):
            raise ConfigError(f"{key}.framed=true: must be false of {of_tokenizer}")
        if end is not None and found["tokenizer"] in ("", BYTES):
            raise ConfigError(f"{key}.end={end}: must be left out of {of_tokenizer}")
        return cls(found["size"], found["mask"], tuple(found["special"]), found["tokenizer"], framed, end)

    @cached_property
    def template(self) -> Template:
        """The special tokens around texts. Raise what `encode` raises."""
        try:
            template = _read_template(self._library, self.size) if self.framed else Template()
        except BadTokenizerError as error:
            raise _explain_damage(error) from error
        return template if self.end is None else template.ended_by(self.end)

    def ending(self, named: str | None) -> Vocabulary:
        """Return the vocabulary of texts that have a special token at their end, if there is one.

        Args:
            named: task.end; None takes that of the post-processor, or else the one special token of ENDS.

        Raises:
            ConfigError: There is no such token, or several have well-known names.
        """
        if self.tokenizer in ("", BYTES):
            if named is not None:
                raise ConfigError(f"task.end={named}: {self.tokenizer or 'ids'} have no such token; leave it out")
            return self
        if named is None:
            if self.template.ends:
                return self
            ends = [name for name in ENDS if self._library.token_to_id(name) in self.special]
            if len(ends) > 1:
                raise ConfigError(
                    f"data.tokenizer has {' and '.join(ends)}, and one ends a text: say which, task.end='{ends[0]}'"
                )
            return replace(self, end=self._library.token_to_id(ends[0])) if ends else self
        end = self._library.token_to_id(named)
        if end is None:
            known = [name for number in self.special if (name := self._library.id_to_token(number)) is not None]
            raise ConfigError(f"task.end={named}: data.tokenizer has no such token; {suggest_names(named, known)}")
        last = self.template.single[-1].ids
        return self if last[-1:] == (end,) else replace(self, end=end)

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


def _count_first(text: str, encoding: Any) -> int | None:
    """Return the bytes of a text up to the end of its first token; None if a character belongs to the second, too."""
    spans = [encoding.token_to_chars(place) for place in range(min(len(encoding.ids), 2))]
    if not spans or None in spans or (len(spans) == 2 and spans[1][0] < spans[0][1]):
        return None
    return len(text[: spans[0][1]].encode())


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
