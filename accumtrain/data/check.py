"""job=check: read a whole data set once, and say what is in it, what is bad, and what is in two splits or classes."""

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

from accumtrain.config.jobs import cell
from accumtrain.config.schema import Config
from accumtrain.console import format_things, say, table, warn
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.open_data import open_data
from accumtrain.data.source import SPLIT_WORDS, BadExample, Split
from accumtrain.errors import DataError
from accumtrain.process.logs import caught_stderr
from accumtrain.progress import counting
from accumtrain.runs.folder import result_file
from accumtrain.tasks.config import TASKS

_SHOWN = 20  # classes, bad examples and duplicates that are printed; the file has all
_CHUNK = 256  # examples between two reports
_ARRAY_CHUNK = 32  # arrays of a chunk are in memory together
# the warnings of libjpeg about the data of an image
_JPEG_WARNING = re.compile(r"Corrupt JPEG data|Premature end of JPEG|Inconsistent progression|Invalid SOS parameters")


def check_data(config: Config) -> dict[str, Any]:
    """Print tables and return the content of check.json. Train nothing.

    Raises:
        DataError: examples are bad, or the data set can't be opened at all.
    """
    targets = TASKS[config.task.kind].targets
    data = open_data(replace(config.data, on_error="skip"), config.run.seed, targets)  # all bad examples are listed
    statistics = {}
    for name, split in data.whole_splits.items():
        with counting(f"reading {name}", split.size) as report:
            statistics[name] = scan_split(split, name, data.num_classes, report)
    bad = [
        {"split": name, "name": example.name, "reason": example.reason}
        for name, found in statistics.items()
        for example in found.bad
    ]
    result = {
        "status": "bad" if bad else "completed",
        "fingerprint": dict(data.fingerprint),
        **{name: _summarize(found, data.classes) for name, found in statistics.items()},
        "bad": _with_count(bad),
        "duplicates": _with_count(_find_duplicates(statistics)),
        "two_classes": _with_count(_find_two_classes(statistics, data.classes)),
    }
    _print_tables(config.data.label, result, data.classes)
    for note in data.notes:
        say(note)
    say(_verdict(result, data.classes))
    if bad:
        total = sum(split.size for split in data.whole_splits.values())
        raise DataError(
            f"{len(bad)} of {total} examples are bad, {result_file(config)} names them: "
            "replace them, or train with data.on_error=skip to go on without those that can't be read",
            result,
        )
    return result


# ---- one split ----


@dataclass
class SplitStatistics:
    """The examples of a split in numbers.

    Attributes:
        labels: The number of good examples of each label.
        sizes: The number of good examples of each size, (height, width).
        contents: By a hash of an image, the good examples that have it: their names and labels.
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
    """Read every example.

    Args:
        split: The split to read.
        title: Its name in the names of examples that have none of their own.
        num_classes: Labels are 0..num_classes-1.
        report: Called now and then with the number of examples that were read since.

    Raises:
        DataError: A whole file can't be read any more.
    """
    statistics = SplitStatistics()
    for examples in _scan_files(split) if isinstance(split, EncodedSplit) else _scan_arrays(split, title, num_classes):
        for example in examples:
            if isinstance(example, BadExample):
                statistics.bad.append(example)
                continue
            statistics.labels[example.label] += 1
            statistics.sizes[example.size] += 1
            statistics.contents.setdefault(example.content, []).append((example.name, example.label))
        report(len(examples))
    return statistics


def _scan_files(split: EncodedSplit) -> Iterator[list[_Image | BadExample]]:
    def examine(index: int) -> _Image | BadExample:
        try:
            stored = split.inspect(index)
        except BadExample as bad:
            return bad
        return _Image(split.name(index), stored.label, stored.shape[:2], _hash(stored.image))

    def examine_alone(index: int) -> _Image | BadExample:
        with caught_stderr() as (captured, _):
            example = examine(index)
            warnings, _others = _read_warnings(captured)
        if isinstance(example, BadExample) or not warnings:
            return example
        return BadExample(example.name, f"is damaged, though it can be decoded: {warnings[0]}", "replace or remove it")

    with ThreadPoolExecutor() as pool:
        for start in range(0, split.size, _CHUNK):
            chunk = range(start, min(start + _CHUNK, split.size))
            with caught_stderr() as (captured, stderr):
                examples = list(pool.map(examine, chunk))
                warnings, others = _read_warnings(captured)
                os.write(stderr, "".join(others).encode())
            # warnings do not name the image
            yield list(map(examine_alone, chunk)) if warnings else examples


def _read_warnings(captured: BinaryIO) -> tuple[list[str], list[str]]:
    """Return the warnings of the decoder of JPEGs, which it writes to stderr before it goes on, and all other lines."""
    captured.seek(0)
    lines = captured.read().decode(errors="replace").splitlines(keepends=True)
    warnings = [line.strip() for line in lines if _JPEG_WARNING.search(line)]
    return warnings, [line for line in lines if not _JPEG_WARNING.search(line)]


def _scan_arrays(split: Split, title: str, num_classes: int) -> Iterator[list[_Image | BadExample]]:
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


# ---- check.json ----


def _summarize(statistics: SplitStatistics, classes: list[str]) -> dict[str, Any]:
    return {
        "examples": sum(statistics.labels.values()),
        "classes": {name: statistics.labels[label] for label, name in enumerate(classes)},
        "height": _spread(height for size, count in statistics.sizes.items() for height in [size[0]] * count),
        "width": _spread(width for size, count in statistics.sizes.items() for width in [size[1]] * count),
        "bad": len(statistics.bad),
    }


def _spread(values: Iterable[int]) -> dict[str, int] | None:
    """Return the smallest, median and largest value; None if there is none."""
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]} if ordered else None


def _with_count(examples: list[dict[str, str]]) -> dict[str, Any]:
    return {"count": len(examples), "examples": examples}


def _find_duplicates(statistics: dict[str, SplitStatistics]) -> list[dict[str, str]]:
    """Return the other examples whose image is in the training split, too."""
    train = statistics["train"].contents
    return [
        {"train": train[content][0][0], split: name}
        for split, found in statistics.items()
        if split != "train"
        for content, examples in found.contents.items()
        if content in train
        for name, _ in examples
    ]


def _find_two_classes(statistics: dict[str, SplitStatistics], classes: list[str]) -> list[dict[str, str]]:
    """Return the images that have several labels, over all splits: for each of their classes the name of an example."""
    images: dict[bytes, dict[str, str]] = {}
    for found in statistics.values():
        for content, examples in found.contents.items():
            for name, label in examples:
                images.setdefault(content, {}).setdefault(classes[label], name)
    return [by_class for by_class in images.values() if len(by_class) > 1]


# ---- tables ----


def _print_tables(label: str, result: dict[str, Any], classes: list[str]) -> None:
    splits = [name for name in SPLIT_WORDS if name in result]
    rows = [(name, *(f"{result[split]['classes'][name]:,}" for split in splits)) for name in classes]
    table(f"{label}: images of each class", ("class", *splits), rows[:_SHOWN])
    _say_more(len(rows))
    table(
        "sizes, smallest / median / largest",
        ("split", "images", "width", "height", "bad"),
        [_format_row(split, result[split]) for split in splits],
    )
    bad, duplicates, two_classes = result["bad"], result["duplicates"], result["two_classes"]
    if bad["count"]:
        say(f"{bad['count']} are bad")
    _say_first(bad, lambda example: f"{example['name']} {example['reason']}")
    if others := " and ".join(splits[1:]):
        tell = warn if duplicates["count"] else say
        tell(f"{duplicates['count']} {others} images are also in the training split, byte for byte")
    _say_first(duplicates, lambda pair: f"{pair.get('test', pair.get('val'))} is {pair['train']}")
    if two_classes["count"]:
        warn(f"{two_classes['count']} images are in two classes, byte for byte")
    _say_first(two_classes, lambda by_class: " is ".join(by_class.values()))


def _verdict(result: dict[str, Any], classes: list[str]) -> str:
    """Return the last line: the data can be trained on, or what must be looked at before."""
    splits = [name for name in SPLIT_WORDS if name in result]
    bad, two_classes = result["bad"]["count"], result["two_classes"]["count"]
    odd = [format_things(bad, "bad example")] if bad else []
    for split in splits[1:]:
        repeated = sum(split in pair for pair in result["duplicates"]["examples"])
        if repeated:
            odd.append(f"{format_things(repeated, f'{SPLIT_WORDS[split]} image')} also in the training split")
    if two_classes:
        odd.append(f"{format_things(two_classes, 'image')} in two classes")
    for split in splits:
        empty = [name for name in classes if not result[split]["classes"][name]]
        if empty:
            which = f"class {empty[0]}" if len(empty) == 1 else f"{len(empty):,} classes"
            odd.append(f"{which} without {SPLIT_WORDS[split]} images")
    return f"Look at this before you train: {', '.join(odd)}." if odd else "The data can be trained on."


def _format_row(split: str, summary: dict[str, Any]) -> tuple[str, ...]:
    shown = (cell(summary[key], lambda size: " / ".join(map(str, size.values()))) for key in ("width", "height"))
    return split, f"{summary['examples']:,}", *shown, str(summary["bad"])


def _say_first(found: dict[str, Any], describe: Callable[[dict[str, str]], str]) -> None:
    for example in found["examples"][:_SHOWN]:
        say(f"  {describe(example)}")
    _say_more(found["count"])


def _say_more(count: int) -> None:
    if count > _SHOWN:
        say(f"  ... and {count - _SHOWN:,} more")
