"""Texts as tokens become a source: what is held out, how long an example is, and what the user is told of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from accumtrain.console import format_things
from accumtrain.data.config import TokenKeys
from accumtrain.data.holdout import check_held_out, draw_held_out, find_fraction, hold_out_evenly, note_held_out
from accumtrain.data.inputs.tokens import APART, PACKED, Tokens
from accumtrain.data.local_files import list_first
from accumtrain.data.source import Source, Wanted, hash_arrays, hash_texts
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.text.config import DocumentRows
from accumtrain.data.text.encode import Encoded
from accumtrain.data.text.rows import fill_rows, make_documents
from accumtrain.data.text.token_split import TokenSplit, cut, cut_into_pieces, describe_cuts, describe_length
from accumtrain.data.text.vocabulary import BYTES, Vocabulary, open_vocabulary
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import format_value

_LISTED = 5  # classes in a message


@dataclass(frozen=True)
class Content:
    """The texts of each split as tokens.

    Attributes:
        path: Where they are, for messages.
        names: Those of the classes, labels or numbers; empty if classes are numbered, or if the tokens are the targets.
        count: The number of these; 0 if the tokens are the targets.
        columns: The most tokens that a row of arrays has; None of texts.
    """

    path: str
    vocabulary: Vocabulary
    splits: Mapping[str, Encoded]
    names: list[str]
    count: int
    notes: list[str]
    columns: int | None = None


def find_vocabulary(config: TokenKeys, wanted: Wanted) -> Vocabulary:
    """Return the vocabulary of the run that texts are for, or that of data.tokenizer.

    A run that has begun goes on with its own if it is of that tokenizer, as older ones have no special tokens.

    Raises:
        ConfigError: The tokenizer can't be opened.
    """
    if wanted.of_run is not None and isinstance(wanted.of_run.inputs, Tokens):
        return wanted.of_run.inputs.vocabulary
    opened = open_vocabulary(config.tokenizer)
    if wanted.rows is not None:
        opened = opened.ending(wanted.rows.end)
    if isinstance(wanted.begun, Tokens) and wanted.begun.vocabulary.tokenizer == opened.tokenizer:
        return wanted.begun.vocabulary
    return opened


# ---- splits ----


def divide(content: Content, fraction: float) -> Content:
    """Return the texts with those of a class to test on, if there are only texts to train on.

    A part of each class is held out, evenly spaced; or of all texts if they have none.

    Raises:
        DataError: There is a single class, or one without enough texts.
    """
    train = content.splits["train"]
    if content.count:
        _check_all_are_trained(content)
    if len(content.splits) > 1:
        return content
    held = _hold_out(content, fraction)
    splits = {"train": train.take(np.flatnonzero(~held)), "test": train.take(np.flatnonzero(held))}
    return replace(content, splits=splits)


def _check_all_are_trained(content: Content) -> None:
    """Raise DataError unless there is a text to train on of each class, and two classes."""
    train = content.splits["train"]
    found = np.unique(train.labels[train.labels != UNREADABLE])
    left_out = train.tell_left_out()
    if content.count < 2:
        raise DataError(
            f"{content.path}: all texts are of one class: it takes two classes or more to tell apart{left_out}"
        )
    listed = min(content.count, len(found) + _LISTED)  # one wrong label may make billions of classes
    missing = np.setdiff1d(np.arange(listed), found).tolist()
    if missing:
        named = [content.names[number] if content.names else number for number in missing]
        remedy = "add some" if content.names else "number the classes from 0 without gaps, or add some"
        raise DataError(
            f"{content.path}: there is no text to train on of class {list_first(named)}: {remedy}{left_out}"
        )


def _hold_out(content: Content, fraction: float) -> np.ndarray:
    """Return a mask of the texts to test on: `holdout_size` of each class, evenly spaced."""
    texts = content.splits["train"]
    held, known = np.zeros(len(texts.ids), bool), texts.labels[texts.labels != UNREADABLE]
    for label in np.unique(known) if len(known) else [UNREADABLE]:
        members = np.flatnonzero(texts.labels == label)
        if len(members) < 2:
            named = content.names[label] if content.names else label
            what = f"class {named} has a single text, {texts.names[members[0]]}" if label >= 0 else "there is one text"
            raise DataError(
                f"{content.path}: {what}: it takes two, to train and to test; add one{texts.tell_left_out()}"
            )
        held[members[hold_out_evenly(len(members), fraction)]] = True
    return held


# ---- the source ----


def make_token_source(config: TokenKeys, content: Content, wanted: Wanted) -> Source:
    """Return tokens with the labels of the texts; or pieces of the texts, whose tokens are the targets; or rows.

    Raises:
        ConfigError: A bucket is as long as an example, or that is too short for its special tokens.
        DataError: A text can't be used in a row.
    """
    length = config.length or content.columns or config.LENGTH
    if config.buckets and config.buckets[-1] >= length:
        raise ConfigError(
            f"data.buckets={format_value(config.buckets)}: must be below the {length} tokens of an example "
            "(data.length); leave out those that are not"
        )
    if wanted.rows is not None:
        return _make_rows(config, content, length, wanted.rows, for_run=wanted.of_run is not None)
    train, vocabulary = content.splits["train"], content.vocabulary
    are_pairs = train.seconds is not None
    if length < (least := train.added + (2 if are_pairs else 1)):
        raise ConfigError(
            f"data.length={length}: the tokenizer adds {format_things(train.added, 'special token')} to "
            f"{'a pair' if are_pairs else 'a text'}, so there is no room for it; give at least {least}"
        )
    shape = cut if content.count else cut_into_pieces
    splits = {split: shape(texts, length) for split, texts in content.splits.items()}
    return Source(
        splits["train"],
        splits.get("test"),
        content.count or vocabulary.size,
        [*content.notes, _describe_lengths(content, splits, length)],
        class_names=content.names,
        val=splits.get("val"),
        fingerprint={
            "data.tokenizer": _digest_tokenizer(vocabulary),
            **{
                f"data.{name}.texts": hash_arrays(split.tokens, *([] if split.labels is None else [split.labels]))
                for name, split in splits.items()
            },
        },
        inputs=Tokens((length,), vocabulary, tuple(config.buckets), pairs=are_pairs),
    )


def _describe_lengths(content: Content, splits: Mapping[str, TokenSplit], length: int) -> str:
    """Return what is cut, and the share of padding."""
    counts = np.concatenate([encoded.lengths for encoded in content.splits.values()])
    longer = int((counts > length).sum())
    pieces = sum(split.size for split in splits.values())
    filled = sum(int(split.lengths.sum()) for split in splits.values())
    padded = f"{1 - filled / (pieces * length):.1%} of the positions are padding"
    one = "text" if content.splits["train"].seconds is None else "pair"
    added = content.splits["train"].added
    if not longer:
        return f"no {one} has more than {describe_length(length, added)} (data.length); {padded}"
    if content.count:
        return f"{describe_cuts(longer, f'{len(counts):,} {one}s', length, added)} (data.length); {padded}"
    divided = f"{format_things(len(counts), 'text is cut', 'texts are cut')} into {format_things(pieces, 'piece')}"
    return f"{divided} of up to {describe_length(length, added)} (data.length); {padded}"


def _make_rows(config: TokenKeys, content: Content, length: int, rows: DocumentRows, *, for_run: bool) -> Source:
    """Return rows of documents, of which some are held out to validate on unless they are for a trained run."""
    vocabulary, skips = content.vocabulary, config.on_error == "skip"
    documents = {split: make_documents(texts, skips=skips) for split, texts in content.splits.items()}
    digests = {f"data.{name}.texts": own.digest for name, own in documents.items()}
    notes = [*content.notes, *_describe_end(vocabulary)]
    if single := sum(own.single for own in documents.values()):
        notes.append(f"{format_things(single, 'text')} of a single token, with none behind it to learn, left out")
    if not for_run and (fraction := find_fraction(len(own.tokens) if (own := documents.get("val")) else None, config)):
        train = documents["train"]
        held = draw_held_out(np.zeros(len(train.tokens), np.int64), train.groups, fraction)
        check_held_out(int(held.sum()), fraction, "there is a single text or group to train on, which is not divided")
        documents["train"], documents["val"] = train.divided(held)
        notes.append(note_held_out(int(held.sum()), fraction, "training text"))
    splits = {split: fill_rows(own, length, vocabulary.size, packing=rows.packing) for split, own in documents.items()}
    texts, filled = sum(len(own.tokens) for own in documents.values()), sum(split.size for split in splits.values())
    padded = 1 - sum(int(split.lengths.sum()) for split in splits.values()) / (filled * length)
    stand = "stand one behind the other" if rows.packing else "begin a row each,"
    notes.append(
        f"{format_things(texts, 'text')} {stand} in {format_things(filled, 'row')} of {length:,} tokens (data.length); "
        f"{padded:.1%} of the positions are padding"
    )
    return Source(
        splits["train"],
        splits.get("test"),
        vocabulary.size,
        notes,
        val=splits.get("val"),
        fingerprint={"data.tokenizer": _digest_tokenizer(vocabulary), **digests},
        inputs=Tokens((length,), vocabulary, tuple(config.buckets), rows=PACKED if rows.packing else APART),
    )


def _describe_end(vocabulary: Vocabulary) -> list[str]:
    """Return a note on the token that ends each text, which no key may name."""
    if vocabulary.tokenizer == BYTES:
        return ["bytes have no token at the end of a text, so that the model does not learn to stop (data.tokenizer)"]
    if not vocabulary.tokenizer:
        return []
    if vocabulary.end is not None:
        return [f"each text ends with {vocabulary.decode([vocabulary.end])} (task.end)"]
    if vocabulary.template.ends:
        return []
    return ["texts have no token at their end, so that the model does not learn to stop: name one by task.end"]


def _digest_tokenizer(vocabulary: Vocabulary) -> str:
    """Return a name of the tokenizer by its content, and the number of its ids."""
    named = vocabulary.tokenizer if vocabulary.tokenizer in ("", BYTES) else hash_texts([vocabulary.tokenizer])
    return f"{named or 'ids'} of {vocabulary.size}"
