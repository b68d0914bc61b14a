"""Reads all examples of a split once: their labels and sizes, which are bad, and which are the same."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from accumtrain.data.bad_example import BadExample
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.source import Split
from accumtrain.process.environment import caught_stderr

# the warnings of libjpeg about the data of an image
_JPEG_WARNING = re.compile(r"Corrupt JPEG data|Premature end of JPEG|Inconsistent progression|Invalid SOS parameters")
_CHUNK = 256  # examples between two reports
_ARRAY_CHUNK = 32  # arrays of a chunk are in memory together


@dataclass
class Census:
    """What is known of the examples of a split.

    Attributes:
        labels: How many good examples have each label.
        sizes: How many good examples have each size, (height, width).
        contents: A hash of each good example's image, and the names of those that have it, with their labels.
        bad: The examples that can't be used, in order.
    """

    labels: Counter[int] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    contents: dict[bytes, list[tuple[str, int]]] = field(default_factory=dict)
    bad: list[BadExample] = field(default_factory=list)


@dataclass(frozen=True)
class _Image:
    name: str
    label: int
    size: tuple[int, int]
    content: bytes


def take_census(split: Split, title: str, num_classes: int, report: Callable[[int], None]) -> Census:
    """Reads every example.

    Args:
        split: The split to read.
        title: Its name in the names of examples that have none of their own.
        num_classes: Labels are 0..num_classes-1.
        report: Called now and then with how many more examples are read.

    Raises:
        DataError: A whole file can't be read any more.
    """
    census = Census()
    for found in _of_files(split) if isinstance(split, EncodedSplit) else _of_arrays(split, title, num_classes):
        for each in found:
            if isinstance(each, BadExample):
                census.bad.append(each)
                continue
            census.labels[each.label] += 1
            census.sizes[each.size] += 1
            census.contents.setdefault(each.content, []).append((each.name, each.label))
        report(len(found))
    return census


def _of_files(split: EncodedSplit) -> Iterator[list[_Image | BadExample]]:
    def examine(index: int) -> _Image | BadExample:
        try:
            stored = split.inspect(index)
        except BadExample as bad:
            return bad
        return _Image(split.name(index), stored.label, stored.shape[:2], _hash(stored.image))

    def examine_alone(index: int) -> _Image | BadExample:
        with caught_stderr() as (said, _):
            found = examine(index)
            warnings, _others = _lines_of(said)
        if isinstance(found, BadExample) or not warnings:
            return found
        return BadExample(found.name, f"is damaged, though it can be decoded: {warnings[0]}", "replace or remove it")

    with ThreadPoolExecutor() as pool:
        for start in range(0, split.size, _CHUNK):
            chunk = range(start, min(start + _CHUNK, split.size))
            with caught_stderr() as (said, stderr):
                examined = list(pool.map(examine, chunk))
                warnings, others = _lines_of(said)
                os.write(stderr, "".join(others).encode())
            yield list(map(examine_alone, chunk)) if warnings else examined


def _lines_of(said: BinaryIO) -> tuple[list[str], list[str]]:
    """The warnings of the decoder of JPEGs, which writes them to stderr and decodes on, and all other lines."""
    said.seek(0)
    lines = said.read().decode(errors="replace").splitlines(keepends=True)
    warnings = [line.strip() for line in lines if _JPEG_WARNING.search(line)]
    return warnings, [line for line in lines if not _JPEG_WARNING.search(line)]


def _of_arrays(split: Split, title: str, num_classes: int) -> Iterator[list[_Image | BadExample]]:
    def read(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return split.read(tf.range(start, tf.minimum(start + _ARRAY_CHUNK, split.size)))

    def examine(index: int, image: np.ndarray, label: int) -> _Image | BadExample:
        name = f"{title} example {index}"
        if not 0 <= label < num_classes:
            return BadExample(name, f"has label {label}, classes are 0..{num_classes - 1}", "correct the labels")
        if not np.isfinite(image).all():
            return BadExample(name, "has pixels that are not finite", "correct the images")
        return _Image(name, label, image.shape[:2], _hash(image.tobytes()))

    done = 0
    for images, labels in tf.data.Dataset.range(0, split.size, _ARRAY_CHUNK).map(read).as_numpy_iterator():
        yield [examine(done + row, images[row], int(label)) for row, label in enumerate(labels)]
        done += len(labels)


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]
