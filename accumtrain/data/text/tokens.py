"""data=tokens: texts of one's own as tokens, with a class for each, or with the tokens themselves as targets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accumtrain.data.config import TokensConfig
from accumtrain.data.holdout import hold_out_evenly
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.local_files import list_first
from accumtrain.data.source import Source, hash_texts
from accumtrain.data.sources.targets import ClassTargets, TargetReader
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.text.arrays import ARRAYS, read_token_arrays
from accumtrain.data.text.encode import Encoded, encode_texts, raise_first
from accumtrain.data.text.listing import list_texts
from accumtrain.data.text.token_split import TokenSplit, cut, cut_into_pieces
from accumtrain.data.text.vocabulary import BYTES, Vocabulary, open_vocabulary
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import format_value

_PURPOSES = {"train": "train on", "val": "validate on", "test": "test on"}
_CLASSES = ClassTargets()
_HEX_DIGITS = 16
_LISTED = 5  # classes in a message


def open_tokens(config: TokensConfig, seed: int, reader: TargetReader | None = _CLASSES) -> Source:
    """Return the tokens of texts, in splits. The seed changes nothing.

    The splits are those of the file or the folder. Otherwise a part of the texts is held out to test on, evenly spaced
    among those of each class.

    Args:
        reader: The way to read the classes; None: the tokens are the targets.

    Raises:
        ConfigError: A key does not go with the data, or the tokenizer can't be opened.
        DataError: The data can't be read, a text can't be used, or there is a single class.
    """
    content = _read_content(config, reader, None)
    train = content.splits["train"]
    if reader is not None:
        _check_all_are_trained(config, train.labels, content)
    if len(content.splits) == 1:
        held = _hold_out(config, train, content.class_names)
        content.splits |= {"train": train.take(np.flatnonzero(~held)), "test": train.take(np.flatnonzero(held))}
    return _make_source(config, content, by_class=reader is not None)


def open_whole_tokens(config: TokensConfig, vocabulary: Vocabulary, reader: TargetReader | None = _CLASSES) -> Source:
    """Return the tokens of all texts, in the splits of the file or the folder, of which there may be one.

    Args:
        vocabulary: that of the run.

    Raises:
        DataError: As `open_tokens`.
    """
    return _make_source(config, _read_content(config, reader, vocabulary), by_class=reader is not None)


@dataclass
class _Content:
    """The texts of each split as tokens.

    Attributes:
        class_names: the names of the classes; empty if they are numbered, or if there are none.
        classes: their number.
        columns: the most tokens that a row of arrays has; None of texts.
    """

    vocabulary: Vocabulary
    splits: dict[str, Encoded]
    class_names: list[str]
    classes: int
    notes: list[str]
    columns: int | None = None


def _read_content(config: TokensConfig, reader: TargetReader | None, vocabulary: Vocabulary | None) -> _Content:
    if Path(config.path).suffix.lower() == ARRAYS:
        return _read_arrays(config, reader, vocabulary)
    for key in ("padding", "vocabulary"):
        if (value := getattr(config, key)) is not None:
            raise ConfigError(f"data.{key}={format_value(value)}: is of ids in an .npz file; leave it out for texts")
    vocabulary = vocabulary or open_vocabulary(config.tokenizer)
    listing, skips = list_texts(config, by_class=reader is not None), config.on_error == "skip"
    splits, kinds = {}, {}
    for split, texts in listing.splits.items():
        splits[split], kinds[split] = encode_texts(texts(), vocabulary.encode, skips=skips)
        if not splits[split].ids:
            raise DataError(f"{config.path} holds no text to {_PURPOSES[split]}: write some into it")
    if reader is None:
        return _Content(vocabulary, splits, [], 0, listing.notes)
    classes = listing.classes or sorted({*kinds["train"]} - {""})
    labelled = {split: _label(config, encoded, kinds[split], classes) for split, encoded in splits.items()}
    return _Content(vocabulary, labelled, classes, len(classes), listing.notes)


def _read_arrays(config: TokensConfig, reader: TargetReader | None, vocabulary: Vocabulary | None) -> _Content:
    if vocabulary is None and config.tokenizer != TokensConfig.tokenizer:
        vocabulary = open_vocabulary(config.tokenizer)
        if config.vocabulary is not None:
            raise ConfigError(
                f"data.vocabulary={config.vocabulary}: the tokenizer says how many ids there are; leave it out"
            )
    arrays = read_token_arrays(config, reader, vocabulary)
    for split in arrays.splits.values():
        if config.on_error == "raise":
            raise_first(split.faults)
        split.check_some_are_usable()
    names, count = (arrays.targets.names, arrays.targets.count) if arrays.targets else ([], 0)
    return _Content(arrays.vocabulary, arrays.splits, names, count, [], arrays.columns)


def _label(config: TokensConfig, texts: Encoded, kinds: Sequence[str], classes: Sequence[str]) -> Encoded:
    """Return texts with the numbers of their classes. Raise DataError for a class that is not among `classes`."""
    places = {kind: place for place, kind in enumerate(classes)}
    for place, kind in enumerate(kinds):
        if kind not in places and place not in texts.faults:
            raise DataError(
                f"{texts.names[place]} is of the class {kind}, and no text to train on is (their classes are "
                f"{list_first(classes)}): correct it, or add some"
            )
    labels = [UNREADABLE if place in texts.faults else places[kind] for place, kind in enumerate(kinds)]
    return replace(texts, labels=np.array(labels, np.int32))


# ---- splits ----


def _check_all_are_trained(config: TokensConfig, labels: np.ndarray, content: _Content) -> None:
    """Raise DataError unless there is a text to train on of each class, and two classes."""
    found = np.unique(labels[labels != UNREADABLE])
    left_out = content.splits["train"].tell_left_out()
    if content.classes < 2:
        raise DataError(
            f"{config.path}: all texts are of one class: it takes two classes or more to tell apart{left_out}"
        )
    listed = min(content.classes, len(found) + _LISTED)  # one wrong label may make billions of classes
    missing = np.setdiff1d(np.arange(listed), found).tolist()
    if missing:
        named = [content.class_names[number] if content.class_names else number for number in missing]
        remedy = "add some" if content.class_names else "number the classes from 0 without gaps, or add some"
        raise DataError(f"{config.path}: there is no text to train on of class {list_first(named)}: {remedy}{left_out}")


def _hold_out(config: TokensConfig, texts: Encoded, class_names: Sequence[str]) -> np.ndarray:
    """Return a mask of the texts to test on: `holdout_size` of each class, evenly spaced."""
    held, known = np.zeros(len(texts.ids), bool), texts.labels[texts.labels != UNREADABLE]
    for label in np.unique(known) if len(known) else [UNREADABLE]:
        members = np.flatnonzero(texts.labels == label)
        if len(members) < 2:
            named = class_names[label] if class_names else label
            what = f"class {named} has a single text, {texts.names[members[0]]}" if label >= 0 else "there is one text"
            raise DataError(
                f"{config.path}: {what}: it takes two, to train and to test; add one{texts.tell_left_out()}"
            )
        held[members[hold_out_evenly(len(members), config.test_fraction)]] = True
    return held


def _make_source(config: TokensConfig, content: _Content, *, by_class: bool) -> Source:
    length = config.length or content.columns or config.LENGTH
    if config.buckets and config.buckets[-1] >= length:
        raise ConfigError(
            f"data.buckets={format_value(config.buckets)}: must be below the {length} tokens of an example "
            "(data.length); leave out those that are not"
        )
    shape = cut if by_class else cut_into_pieces
    splits = {split: shape(texts, length) for split, texts in content.splits.items()}
    vocabulary = content.vocabulary
    return Source(
        splits["train"],
        splits.get("test"),
        content.classes if by_class else vocabulary.size,
        [*content.notes, *_note_lengths(content.splits, splits, length, by_class=by_class)],
        class_names=content.class_names,
        val=splits.get("val"),
        fingerprint={
            "data.tokenizer": _digest_tokenizer(vocabulary),
            **{f"data.{name}.texts": _digest(split) for name, split in splits.items()},
        },
        inputs=Tokens((length,), vocabulary, tuple(config.buckets)),
    )


def _note_lengths(
    texts: Mapping[str, Encoded], splits: Mapping[str, TokenSplit], length: int, *, by_class: bool
) -> list[str]:
    """Return a note of what is cut, and of the share of the places that is padding."""
    counts = np.concatenate([[len(ids) for ids in encoded.ids] for encoded in texts.values()])
    longer = int((counts > length).sum())
    pieces = sum(split.size for split in splits.values())
    filled = sum(int(split.lengths.sum()) for split in splits.values())
    padded = f"{1 - filled / (pieces * length):.1%} of the places are padding"
    if not longer:
        return [f"no text has more than {length:,} tokens (data.length); {padded}"]
    if by_class:
        return [f"{longer:,} of {len(counts):,} texts are cut to their first {length:,} tokens (data.length); {padded}"]
    return [f"{len(counts):,} texts are cut into {pieces:,} pieces of up to {length:,} tokens (data.length); {padded}"]


def _digest_tokenizer(vocabulary: Vocabulary) -> str:
    """Return a name of the tokenizer by its content, and the number of its ids."""
    named = vocabulary.tokenizer if vocabulary.tokenizer in ("", BYTES) else hash_texts([vocabulary.tokenizer])
    return f"{named or 'ids'} of {vocabulary.size}"


def _digest(split: TokenSplit) -> str:
    """Return a hash of tokens and labels."""
    state = hashlib.sha256(split.tokens.data)
    state.update(b"" if split.labels is None else split.labels.data)
    return state.hexdigest()[:_HEX_DIGITS]
