"""job=check: read everything once."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.open_data import open_data
from accumtrain.data.source import SPLIT_WORDS, BadExample, Split
from accumtrain.errors import DataError
from accumtrain.process.environment import caught_stderr
from accumtrain.progress import counting
from accumtrain.runs.names import result_file

# Reads all examples of a split once: their labels and sizes, which are bad, and which are the same.


# the warnings of libjpeg about the data of an image
_JPEG_WARNING = re.compile(r"Corrupt JPEG data|Premature end of JPEG|Inconsistent progression|Invalid SOS parameters")
_CHUNK = 256  # examples between two reports
_ARRAY_CHUNK = 32  # arrays of a chunk are in memory together


@dataclass
class SplitStatistics:
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


def scan_split(split: Split, title: str, num_classes: int, report: Callable[[int], None]) -> SplitStatistics:
    """Reads every example.

    Args:
        split: The split to read.
        title: Its name in the names of examples that have none of their own.
        num_classes: Labels are 0..num_classes-1.
        report: Called now and then with how many more examples are read.

    Raises:
        DataError: A whole file can't be read any more.
    """
    census = SplitStatistics()
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


# job=check: reads a whole data set once and says what is in it, what is bad, and what is in two splits or classes.


SHOWN = 20  # classes, bad examples and duplicates that are printed; the file has all
SIZE = "{} / {} / {}"


def check_data(config: Config) -> dict[str, Any]:
    """Prints tables and returns the content of check.json. Trains nothing.

    Raises:
        DataError: examples are bad, or the data set can't be opened at all.
    """
    data = open_data(replace(config.data, on_error="skip"), config.run.seed)  # bad examples are listed, all of them
    splits = data.whole_splits
    censuses = {}
    for name, split in splits.items():
        with counting(f"reading {name}", split.size) as report:
            censuses[name] = scan_split(split, name, data.num_classes, report)
    classes = data.classes
    bad = _bad(censuses)
    result = {
        "status": "bad" if bad else "completed",
        "fingerprint": dict(data.fingerprint),
        **{name: _summary(census, classes) for name, census in censuses.items()},
        "bad": _counted(bad),
        "duplicates": _counted(_duplicates(censuses)),
        "two_classes": _counted(_of_two_classes(censuses, classes)),
    }
    _show(config, result, classes)
    for note in data.notes:
        say(note)
    if bad:
        total = sum(split.size for split in splits.values())
        raise DataError(
            f"{len(bad)} of {total} examples are bad, {result_file(config)} names them: "
            "replace them, or train with data.on_error=skip to go on without those that can't be read",
            result,
        )
    return result


def _summary(census: SplitStatistics, classes: list[str]) -> dict[str, Any]:
    return {
        "examples": sum(census.labels.values()),
        "classes": {name: census.labels[label] for label, name in enumerate(classes)},
        "height": _spread(height for size, count in census.sizes.items() for height in [size[0]] * count),
        "width": _spread(width for size, count in census.sizes.items() for width in [size[1]] * count),
        "bad": len(census.bad),
    }


def _spread(values: Iterable[int]) -> dict[str, int] | None:
    """Smallest, median and largest value; None if there is none."""
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]} if ordered else None


def _counted(examples: list[dict[str, str]]) -> dict[str, Any]:
    return {"count": len(examples), "examples": examples}


def _bad(censuses: dict[str, SplitStatistics]) -> list[dict[str, str]]:
    return [
        {"split": split, "name": bad.name, "reason": bad.reason}
        for split, census in censuses.items()
        for bad in census.bad
    ]


def _duplicates(censuses: dict[str, SplitStatistics]) -> list[dict[str, str]]:
    """The other examples whose image is in the training split, too."""
    train = censuses["train"].contents
    return [
        {"train": train[content][0][0], split: name}
        for split, census in censuses.items()
        if split != "train"
        for content, examples in census.contents.items()
        if content in train
        for name, _ in examples
    ]


def _of_two_classes(censuses: dict[str, SplitStatistics], classes: list[str]) -> list[dict[str, str]]:
    """The images that have several labels, in all splits together: the name of an example of each of their classes."""
    named: dict[bytes, dict[str, str]] = {}
    for census in censuses.values():
        for content, examples in census.contents.items():
            for name, label in examples:
                named.setdefault(content, {}).setdefault(classes[label], name)
    return [by_class for by_class in named.values() if len(by_class) > 1]


def _show(config: Config, result: dict[str, Any], classes: list[str]) -> None:
    splits = [name for name in SPLIT_WORDS if name in result]
    rows = [(name, *(f"{result[split]['classes'][name]:,}" for split in splits)) for name in classes]
    table(f"{config.data.label}: images of each class", ("class", *splits), rows[:SHOWN])
    _more(len(rows))
    table(
        "sizes, smallest / median / largest",
        ("split", "images", "width", "height", "bad"),
        [_row(split, result[split]) for split in splits],
    )
    bad, duplicates = result["bad"], result["duplicates"]
    if bad["count"]:
        say(f"{bad['count']} are bad")
        for each in bad["examples"][:SHOWN]:
            say(f"  {each['name']} {each['reason']}")
        _more(bad["count"])
    others = " and ".join(splits[1:])
    tell = warn if duplicates["count"] else say
    tell(f"{duplicates['count']} {others} images are also in the training split, byte for byte")
    for each in duplicates["examples"][:SHOWN]:
        say(f"  {each.get('test', each.get('val'))} is {each['train']}")
    _more(duplicates["count"])
    twice = result["two_classes"]
    if twice["count"]:
        warn(f"{twice['count']} images are in two classes, byte for byte")
    for by_class in twice["examples"][:SHOWN]:
        say("  " + " is ".join(by_class.values()))
    _more(twice["count"])


def _row(split: str, summary: dict[str, Any]) -> tuple[str, ...]:
    sizes = (summary[key] for key in ("width", "height"))
    shown = ("-" if size is None else SIZE.format(*size.values()) for size in sizes)
    return split, f"{summary['examples']:,}", *shown, str(summary["bad"])


def _more(count: int) -> None:
    if count > SHOWN:
        say(f"  ... and {count - SHOWN:,} more")
