"""Examples in the training split and in another one, or with two targets, as far as a look before training tells.

job=check compares all contents of all sources; here files and shards are compared, which is cheap.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np

from accumtrain.console import format_things, say, warn
from accumtrain.data.source import SPLIT_WORDS, Dataset, Split, Target, contradict, read_labels, read_target

SECONDS = 1.0  # at most, before training


class _File(NamedTuple):
    split: str
    target: Target
    path: str


@dataclass
class Repeats:
    """The repeated examples that were found.

    Attributes:
        counts: for val and test the number of examples that are training examples, too; for `classes` that of the
            images in two classes, for `targets` that of the images with different labels or numbers.
        warnings: lines about them, for the user.
        note: a line about files that were not compared; empty if all were.
    """

    counts: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    note: str = ""

    def tell(self) -> None:
        for warning in self.warnings:
            warn(warning)
        if self.note:
            say(self.note)

    def add(self, key: str, count: int, warning: str) -> None:
        if count:
            self.counts[key] = count
            self.warnings.append(f"{warning}; job=check names all")


def find_repeats(data: Dataset, seconds: float = SECONDS) -> Repeats:
    """Compare files of the same size by their contents, and shards by their records."""
    splits, repeats = data.whole_splits, Repeats()
    if all(split.files for split in splits.values()):
        _compare_files(splits, time.monotonic() + seconds, repeats)
    elif all(split.ranges for split in splits.values()):
        _compare_records(splits, repeats)
    return repeats


def _compare_files(splits: dict[str, Split], deadline: float, repeats: Repeats) -> None:
    contents: dict[bytes, list[_File]] = {}
    for file in _list_same_size(splits):
        if time.monotonic() > deadline:
            repeats.note = (
                "some files have the same size, and no time was left to compare them: job=check does, and finds test "
                "images that are training images"
            )
            break
        if content := _hash(file.path):
            contents.setdefault(content, []).append(file)
    trained = {content: files[0] for content, files in contents.items() if files[0].split == "train"}
    for name in list(splits)[1:]:
        pairs = [(file, trained[content]) for content in trained for file in contents[content] if file.split == name]
        _add_trained(repeats, name, len(pairs), splits[name], *(f"{a.path} is {b.path}" for a, b in pairs[:1]))
    twice = [pair for files in contents.values() if (pair := _find_contradiction(files))]
    for first, other in twice[:1]:
        if isinstance(first.target, int):
            key, told = "classes", f"{format_things(len(twice), 'image is', 'images are')} in two classes"
        else:
            key, told = "targets", f"{format_things(len(twice), 'image has', 'images have')} different targets"
        repeats.add(key, len(twice), f"{told}, byte for byte: {first.path} is {other.path}")


def _find_contradiction(files: list[_File]) -> tuple[_File, _File] | None:
    """Return the first file, and the first of the others, that can't have the same image; None without any."""
    if not contradict(file.target for file in files):
        return None
    return next(pair for pair in combinations(files, 2) if contradict(file.target for file in pair))


def _list_same_size(splits: dict[str, Split]) -> Iterator[_File]:
    """Yield the files that have the size of one in another split or with another target, the smallest first."""
    sizes = np.concatenate([split.sizes for split in splits.values()])
    split_numbers = np.repeat(np.arange(len(splits)), [split.size for split in splits.values()])
    labels = np.concatenate([read_labels(split) for split in splits.values()])
    indices = np.concatenate([np.arange(split.size) for split in splits.values()])
    names, files = list(splits), [split.files for split in splits.values()]
    order = np.argsort(sizes, kind="stable")
    ends = np.flatnonzero(np.diff(sizes[order])) + 1
    for group in np.split(order, ends):
        differs = np.ptp(split_numbers[group]) or np.any(labels[group] != labels[group[0]])
        if sizes[group[0]] > 0 and len(group) > 1 and differs:
            for at in group:
                number = split_numbers[at]
                yield _File(names[number], read_target(labels[at]), str(files[number][indices[at]]))


def _hash(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return hashlib.sha256(file.read()).digest()
    except OSError:  # the reader of the file names it
        return None


def _compare_records(splits: dict[str, Split], repeats: Repeats) -> None:
    trained = splits["train"].ranges
    for name in list(splits)[1:]:
        both = [
            (path, max(first, first_trained), min(end, end_trained))
            for path, first, end in splits[name].ranges
            for other, first_trained, end_trained in trained
            if path == other and max(first, first_trained) < min(end, end_trained)
        ]
        count = sum(end - first for _, first, end in both)
        _add_trained(repeats, name, count, splits[name], *(f"record {first} of {path}" for path, first, _ in both[:1]))


def _add_trained(repeats: Repeats, name: str, count: int, split: Split, *example: str) -> None:
    of = f"{split.size:,} {SPLIT_WORDS[name]} images"
    repeats.add(
        name,
        count,
        f"{format_things(count, f'of {of} is a training image', f'of {of} are training images')}, too "
        f"({''.join(example)}), so its figures are better than those of new images",
    )
