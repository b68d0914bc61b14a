"""Files of tokenizers, opened by the library tokenizers: its own, and those of older folders of published models."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict

from accumtrain.console import format_bytes
from accumtrain.data.local_files import find_file_fault
from accumtrain.errors import ConfigError
from accumtrain.process.machine import spare_bytes
from accumtrain.runs.files import parse_json

_PACKAGE = "tokenizers"
_GIVE = "give the tokenizer.json of the library tokenizers, a folder with one, or bytes"
_SAVE = "save the tokenizer as tokenizer.json, as the library transformers does by AutoTokenizer's save_pretrained"
_BYTES_IN_MEMORY = 64  # of each byte of a file, while the library reads it
_MOST_GROWTH = 64  # times the length of a text; those of trained tokenizers are below 10
_BERT = ("[UNK]", "[CLS]", "[SEP]")  # tokens that texts need, of vocab.txt
_ROBERTA = ("<s>", "</s>")  # of vocab.json
_OTHERS = ("<pad>", "<unk>")


class BadTokenizerError(Exception):
    """A text is no tokenizer, or one that makes of a text a much longer one."""


class _Settings(TypedDict, total=False):
    """The words of tokenizer_config.json and config.json about a tokenizer."""

    do_lower_case: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    add_prefix_space: bool


def check_installed(given: str) -> None:
    """Raise ConfigError, which begins with what asks for it, if the library is not installed."""
    if find_spec(_PACKAGE) is None:
        raise ConfigError(f"{given} needs the library {_PACKAGE}: pip install 'accumtrain[{_PACKAGE}]'")


def open_named_tokenizer(name: str) -> Any:
    """Return the tokenizer of a tokenizer.json, or of the folder of a published model.

    A folder has a tokenizer.json, or vocab.txt of a BERT, or vocab.json with merges.txt of a RoBERTa; the first counts.

    Raises:
        ConfigError: It is not there, is no such file or folder, does not fit in memory, or the library is missing.
    """
    given, path = f"data.tokenizer={name}", Path(name)
    named, read = _find_reader(path, given) if path.is_dir() else ([path], _read_own)
    for file in named:
        _check_file(file, given if file == path else f"{given}: {file}")
    check_installed(given)
    try:
        return open_tokenizer(read(path if path.is_dir() else path.parent, named))
    except (OSError, UnicodeError, BadTokenizerError) as error:
        of = given if named == [path] else f"{given}: {' with '.join(map(str, named))}"
        raise ConfigError(
            f"{of} is no file of the library tokenizers ({' '.join(str(error).split())[:200]}): {_GIVE}"
        ) from error


def open_tokenizer(text: str) -> Any:
    """Return a tokenizer of its JSON. It cuts and pads no texts.

    Raises:
        BadTokenizerError: It is none, or its replacements can make a text _MOST_GROWTH times as long.
    """
    from tokenizers import Tokenizer  # an extra

    with library_errors(BadTokenizerError):
        tokenizer = Tokenizer.from_str(text)
    content = json.loads(text)
    growth = math.prod(_find_growth(content.get(name)) for name in ("normalizer", "pre_tokenizer", "decoder"))
    if growth > _MOST_GROWTH:
        raise BadTokenizerError(f"its replacements make a text up to {growth:.3g} times as long")
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
def library_errors(kind: type[Exception]) -> Iterator[None]:
    """Turn an error of the library into one of `kind`."""
    try:
        yield
    except BaseException as error:
        # of its own kinds one is a plain Exception, the other, of a panic, is not even that, and has no name to import
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise kind(" ".join(str(error).split())[:100]) from error


# ---- the files of a folder ----

Read = Callable[[Path, Sequence[Path]], str]  # from a folder and its files to a tokenizer's JSON


def _find_reader(folder: Path, given: str) -> tuple[list[Path], Read]:
    """Return the files of a folder that are its tokenizer, and what reads them. Raise ConfigError if there are none."""
    for names, read in _READERS.items():
        files = [folder / name for name in names]
        if all(map(os.path.lexists, files)):
            return files, read
    kinds = ", nor ".join(" with ".join(names) for names in _READERS)
    raise ConfigError(f"{given} is a folder without {kinds}: {_SAVE}")


def _check_file(file: Path, named: str) -> None:
    """Raise ConfigError, which begins with the name, for a file that can't be read or does not fit in memory."""
    if fault := find_file_fault(file):
        raise ConfigError(f"{named} {fault}: {_GIVE}")
    if (size := file.stat().st_size * _BYTES_IN_MEMORY) > (spare := spare_bytes()):
        raise ConfigError(
            f"{named} takes up to {format_bytes(size)} while it is read, {format_bytes(spare)} of memory are free: "
            f"{_GIVE}"
        )


def _read_own(folder: Path, files: Sequence[Path]) -> str:
    (file,) = files
    return file.read_text(encoding="utf-8")


def _read_bert(folder: Path, files: Sequence[Path]) -> str:
    """Return the tokenizer of vocab.txt. Without a word on it, the tokens say if texts are lower-cased."""
    from tokenizers.implementations import BertWordPieceTokenizer
    from tokenizers.models import WordPiece

    (file,) = files
    with library_errors(BadTokenizerError):
        words = WordPiece.read_file(str(file))
    _check_has(words, _BERT)
    settings = _read_settings(folder)
    has_capitals = any(word != word.lower() for word in words if not word.startswith("["))
    return BertWordPieceTokenizer(
        words,
        lowercase=settings.get("do_lower_case", not has_capitals),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    ).to_str()


def _read_roberta(folder: Path, files: Sequence[Path]) -> str:
    """Return the tokenizer of vocab.json and merges.txt, whose mask takes the blanks before it."""
    from tokenizers import AddedToken
    from tokenizers.implementations import ByteLevelBPETokenizer
    from tokenizers.models import BPE
    from tokenizers.processors import RobertaProcessing

    with library_errors(BadTokenizerError):
        tokens, merges = BPE.read_file(*map(str, files))
    _check_has(tokens, _ROBERTA)
    prefix = _read_settings(folder).get("add_prefix_space", False)
    with library_errors(BadTokenizerError):
        tokenizer = ByteLevelBPETokenizer(tokens, merges, add_prefix_space=prefix)
    begin, end = ((name, tokens[name]) for name in _ROBERTA)
    tokenizer.post_processor = RobertaProcessing(end, begin, add_prefix_space=prefix)
    tokenizer.add_special_tokens([name for name in (*_ROBERTA, *_OTHERS) if name in tokens])
    if "<mask>" in tokens:
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer.to_str()


_READERS: Mapping[tuple[str, ...], Read] = {
    ("tokenizer.json",): _read_own,
    ("vocab.txt",): _read_bert,
    ("vocab.json", "merges.txt"): _read_roberta,
}


def _check_has(tokens: Mapping[str, int], needed: Sequence[str]) -> None:
    if absent := [name for name in needed if name not in tokens]:
        raise BadTokenizerError(f"it lacks {' and '.join(absent)}; {_SAVE}")


def _read_settings(folder: Path) -> _Settings:
    """Return what the folder says of its tokenizer; tokenizer_config.json counts before config.json."""
    settings = _Settings()
    for name in ("config.json", "tokenizer_config.json"):
        file = folder / name
        if not os.path.lexists(file):
            continue
        _check_file(file, str(file))
        try:
            settings.update(parse_json(file.read_text(encoding="utf-8"), _Settings))
        except ValueError as error:
            raise BadTokenizerError(f"{file}: {error}") from error
    return settings
