"""job=check: read a whole data set once, and say what is in it, and what is bad.

It also says which images are in two splits, and which have two targets.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import tensorflow as tf

from accumtrain.config.check import form_of_targets
from accumtrain.config.jobs import cell
from accumtrain.config.schema import Config
from accumtrain.console import format_things, say, table, warn
from accumtrain.data.images.damage import inspect_all
from accumtrain.data.images.encoded import EncodedSplit, StoredExample
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.open_data import open_data
from accumtrain.data.source import SPLIT_WORDS, BadExample, Split, Target, contradict, read_labels, read_target
from accumtrain.data.text.token_split import TokenSplit
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import CLASSES, LABELS, NUMBERS, TOKENS
from accumtrain.progress import counting
from accumtrain.runs.folder import result_file

_SHOWN = 20  # targets, bad examples and duplicates that are printed; the file has all
_CHUNK = 256  # examples between two reports
_ARRAY_CHUNK = 32  # arrays of a chunk are in memory together


def check_data(config: Config) -> dict[str, Any]:
    """Print tables and return the content of check.json. Train nothing.

    Raises:
        ConfigError: the inputs are neither images nor texts nor a table of numbers, or the targets have a form that is
            not in CHECKED.
        DataError: examples are bad, or the data set can't be opened at all.
    """
    form = form_of_targets(config)
    rows = config.task.rows and replace(config.task.rows, packing=False)  # so that texts can be compared
    data = open_data(replace(config.data, on_error="skip"), config.run.seed, form, rows=rows)  # all bad ones are listed
    inputs = data.inputs
    if not inputs.is_checked or form not in CHECKED:
        raise ConfigError(
            f"job=check: reads images, texts and tables of numbers with {', '.join(CHECKED)}; data={config.data.kind} "
            f"has other {'targets' if inputs.is_checked else 'inputs'}, which job=train reads as they are"
        )
    checked = CHECKED[form]
    targets = checked(data.classes if checked.has_names else [], inputs.asked)
    statistics = {}
    for name, split in data.whole_splits.items():
        with counting(f"reading {name}", split.size) as report:
            statistics[name] = scan_split(split, name, targets, report)
    bad = [
        {"split": name, "name": example.name, "reason": example.reason}
        for name, found in statistics.items()
        for example in found.bad
    ]
    result = {
        "status": "bad" if bad else "completed",
        "fingerprint": dict(data.fingerprint),
        **{name: _summarize(found, targets, inputs) for name, found in statistics.items()},
        "bad": _with_count(bad),
        "duplicates": _with_count(_find_duplicates(statistics)),
        targets.twice: _with_count(_find_two_targets(statistics, targets)),
    }
    _print_tables(config.data.label, result, targets, inputs)
    for note in data.notes:
        say(note)
    say(_verdict(result, targets, inputs))
    if bad:
        total = sum(split.size + len(split.left_out) for split in data.whole_splits.values())
        skips = config.data.on_error == "skip"
        skipped = "a training goes" if skips else "train with data.on_error=skip to go"
        raise DataError(
            f"{len(bad)} of {total} examples are bad, {result_file(config)} names them: "
            f"replace them, or {skipped} on without those that can't be read",
            result,
        )
    return result


# ---- one split ----


@dataclass
class SplitStatistics:
    """The examples of a split in numbers.

    Attributes:
        targets: The number of good examples of each target.
        sizes: The number of good examples of each size: (height, width), or of texts (tokens,) before they are cut.
        contents: By a hash of an image, the good examples that have it: their names and targets.
        bad: The examples that can't be used, in order.
    """

    targets: Counter[Target] = field(default_factory=Counter)
    sizes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    contents: dict[bytes, list[tuple[str, Target]]] = field(default_factory=dict)
    bad: list[BadExample] = field(default_factory=list)


@dataclass(frozen=True)
class _Example:
    name: str
    target: Target
    size: tuple[int, ...]
    content: bytes


def scan_split(split: Split, title: str, targets: CheckedTargets, report: Callable[[int], None]) -> SplitStatistics:
    """Read every example.

    Args:
        split: The split to read.
        title: Its name in the names of examples that have none of their own.
        targets: They say which targets can't be.
        report: Called now and then with the number of examples that were read since.

    Raises:
        DataError: A whole file can't be read any more.
    """
    statistics = SplitStatistics(bad=[*split.left_out])
    for examples in _scan(split, title, targets):
        for example in examples:
            if isinstance(example, BadExample):
                statistics.bad.append(example)
                continue
            statistics.targets[example.target] += 1
            statistics.sizes[example.size] += 1
            statistics.contents.setdefault(example.content, []).append((example.name, example.target))
        report(len(examples))
    return statistics


def _scan(split: Split, title: str, targets: CheckedTargets) -> Iterator[list[_Example | BadExample]]:
    if isinstance(split, EncodedSplit):
        return _scan_files(split)
    return _scan_texts(split) if isinstance(split, TokenSplit) else _scan_arrays(split, title, targets)


def _scan_texts(split: TokenSplit) -> Iterator[list[_Example | BadExample]]:
    def examine(index: int) -> _Example | BadExample:
        if index in split.skipped:
            return split.skipped[index]
        target, size = () if labels is None else read_target(labels[index]), (int(split.whole_lengths[index]),)
        return _Example(split.names[index], target, size, _hash(split.tokens[index].tobytes()))

    labels = None if split.labels is None else read_labels(split)
    for start in range(0, split.size, _CHUNK):
        yield [examine(index) for index in range(start, min(start + _CHUNK, split.size))]


def _scan_files(split: EncodedSplit) -> Iterator[list[_Example | BadExample]]:
    done = 0
    for examples in inspect_all(split):
        yield [
            example if isinstance(example, BadExample) else _examine(split.name(index), example)
            for index, example in enumerate(examples, done)
        ]
        done += len(examples)


def _examine(name: str, stored: StoredExample) -> _Example:
    return _Example(name, read_target(stored.label), stored.shape[:2], _hash(stored.image))


def _scan_arrays(split: Split, title: str, targets: CheckedTargets) -> Iterator[list[_Example | BadExample]]:
    def read(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return split.read(tf.range(start, tf.minimum(start + _ARRAY_CHUNK, split.size)))

    def examine(index: int, image: np.ndarray, target: Target) -> _Example | BadExample:
        name = f"{title} example {index}" if split.locate is None else split.locate(index)
        if fault := targets.fault(target):
            return BadExample(name, f"has {fault}", "correct it")
        if not np.isfinite(image).all():
            return BadExample(name, "has pixels that are not finite", "correct the images")
        return _Example(name, target, image.shape[:2], _hash(image.tobytes()))

    done = 0
    for images, labels in tf.data.Dataset.range(0, split.size, _ARRAY_CHUNK).map(read).as_numpy_iterator():
        yield [examine(done + row, images[row], read_target(label)) for row, label in enumerate(labels)]
        done += len(labels)


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]


# ---- targets ----


class CheckedTargets(ABC):
    """The targets of examples, as they are checked and told.

    Args:
        names: of the classes, labels or numbers.
        inputs: what the examples are, in words.
    """

    # images that contradict each other: the key in check.json, and what is said of them
    twice: ClassVar[str]
    that_are_twice: ClassVar[str]
    has_names: ClassVar[bool] = True  # which are told

    def __init__(self, names: Sequence[str], inputs: str = "images") -> None:
        self.names, self.inputs = list(names), inputs

    @abstractmethod
    def fault(self, target: Any) -> str:
        """Return the fault of a target, to be read after `has`; empty if it has none."""

    @abstractmethod
    def in_words(self, target: Any) -> str:
        """Return a target in words, each by others."""

    @abstractmethod
    def describe(self, counts: Counter[Any]) -> dict[str, Any]:
        """Return the part of a split in check.json. `counts` has its number of examples of each target."""

    @abstractmethod
    def show(self, label: str, splits: dict[str, dict[str, Any]]) -> None:
        """Print a table. `splits` has the part of each split in check.json."""

    @abstractmethod
    def find_odd(self, images: str, described: dict[str, Any]) -> list[str]:
        """Return what there is to be looked at before a training.

        Args:
            images: of a split, in words.
            described: its part of check.json.
        """


class CheckedClasses(CheckedTargets):
    twice, that_are_twice = "two_classes", "in two classes"

    def fault(self, target: int) -> str:
        known = 0 <= target < len(self.names)
        return "" if known else f"label {target}, classes are 0..{len(self.names) - 1}"

    def in_words(self, target: int) -> str:
        return self.names[target]

    def describe(self, counts: Counter[int]) -> dict[str, Any]:
        return {"classes": {name: counts[index] for index, name in enumerate(self.names)}}

    def show(self, label: str, splits: dict[str, dict[str, Any]]) -> None:
        rows = [(name, *(f"{found['classes'][name]:,}" for found in splits.values())) for name in self.names]
        table(f"{label}: {self.inputs} of each class", ("class", *splits), rows[:_SHOWN])
        _say_more(len(rows))

    def find_odd(self, images: str, described: dict[str, Any]) -> list[str]:
        empty = [name for name, count in described["classes"].items() if not count]
        return _name_odd("class", "classes", empty, f"without {images}")


Columns: TypeAlias = tuple[float | None, ...]  # labels or numbers of an example


class CheckedLabels(CheckedTargets):
    """Of each label it is told how many examples have it, how many lack it, and of how many it is unknown."""

    twice, that_are_twice = "different_labels", "with different labels"

    def fault(self, target: Columns) -> str:
        for name, value in zip(self.names, target, strict=True):
            if value not in (0, 1, None):
                return f"{name}={value:g}, labels are 0, 1 or NaN where they are unknown"
        return ""

    def in_words(self, target: Columns) -> str:
        marks = {1.0: "", None: "?"}
        own = [name + marks[value] for name, value in zip(self.names, target, strict=True) if value in marks]
        return ", ".join(own) or "none"

    def describe(self, counts: Counter[Columns]) -> dict[str, Any]:
        found: dict[str, Counter[float | None]] = {name: Counter() for name in self.names}
        for target, count in counts.items():
            for name, value in zip(self.names, target, strict=True):
                found[name][value] += count
        return {
            "labels": {name: {"with": own[1], "without": own[0], "unknown": own[None]} for name, own in found.items()}
        }

    def show(self, label: str, splits: dict[str, dict[str, Any]]) -> None:
        rows = [
            (name, *(" / ".join(f"{count:,}" for count in found["labels"][name].values()) for found in splits.values()))
            for name in self.names
        ]
        table(f"{label}: {self.inputs} with a label / without it / unknown", ("label", *splits), rows[:_SHOWN])
        _say_more(len(rows))

    def find_odd(self, images: str, described: dict[str, Any]) -> list[str]:
        labels = described["labels"]
        absent = [name for name, count in labels.items() if not count["with"]]
        everywhere = [name for name, count in labels.items() if count["with"] and not count["without"]]
        return [
            *_name_odd("label", "labels", absent, f"without {images}"),
            *_name_odd("label", "labels", everywhere, f"on all {images}"),
        ]


class CheckedNumbers(CheckedTargets):
    """Of each number its smallest, mean and largest value is told, and of how many examples it is unknown."""

    twice, that_are_twice = "different_numbers", "with different numbers"

    def fault(self, target: Columns) -> str:
        for name, value in zip(self.names, target, strict=True):
            if value is not None and not math.isfinite(value):
                return f"{name}={value:g}, numbers are finite, or NaN where they are unknown"
        return ""

    def in_words(self, target: Columns) -> str:
        return ", ".join(f"{name} {cell(value, '.6g')}" for name, value in zip(self.names, target, strict=True))

    def describe(self, counts: Counter[Columns]) -> dict[str, Any]:
        found = {}
        for index, name in enumerate(self.names):
            known = [(value, count) for target, count in counts.items() if (value := target[index]) is not None]
            values, times = zip(*known, strict=True) if known else ((), ())
            found[name] = {
                "min": min(values, default=None),
                "mean": float(np.average(values, weights=times)) if known else None,
                "max": max(values, default=None),
                "unknown": counts.total() - sum(times),
            }
        return {"numbers": found}

    def show(self, label: str, splits: dict[str, dict[str, Any]]) -> None:
        rows = [
            (name, split, *(cell(own[key], ".6g") for key in ("min", "mean", "max")), f"{own['unknown']:,}")
            for name in self.names
            for split, own in ((split, found["numbers"][name]) for split, found in splits.items())
        ]
        table(f"{label}: numbers", ("number", "split", "min", "mean", "max", "unknown"), rows[:_SHOWN])
        _say_more(len(rows))

    def find_odd(self, images: str, described: dict[str, Any]) -> list[str]:
        numbers = described["numbers"]
        unknown = [name for name, own in numbers.items() if own["min"] is None]
        same = [name for name, own in numbers.items() if own["min"] == own["max"] is not None]
        return [
            *_name_odd("number", "numbers", unknown, f"unknown for all {images}"),
            *_name_odd("number", "numbers", same, f"the same for all {images}"),
        ]


class CheckedTokens(CheckedTargets):
    """The tokens of a text are its targets, too: there are no classes to show."""

    twice, that_are_twice = "different_targets", "with different targets"
    has_names = False  # there may be billions

    def fault(self, target: Columns) -> str:
        return ""

    def in_words(self, target: Columns) -> str:
        return ""

    def describe(self, counts: Counter[Columns]) -> dict[str, Any]:
        return {}

    def show(self, label: str, splits: dict[str, dict[str, Any]]) -> None:
        say(f"{label}: {self.inputs} without classes")

    def find_odd(self, images: str, described: dict[str, Any]) -> list[str]:
        return []


CHECKED: dict[str, type[CheckedTargets]] = {
    CLASSES: CheckedClasses,
    LABELS: CheckedLabels,
    NUMBERS: CheckedNumbers,
    TOKENS: CheckedTokens,
}


def _name_odd(one: str, several: str, names: list[str], fault: str) -> list[str]:
    if not names:
        return []
    return [f"{one} {names[0]} {fault}" if len(names) == 1 else f"{len(names):,} {several} {fault}"]


# ---- check.json ----


def _summarize(statistics: SplitStatistics, targets: CheckedTargets, inputs: Inputs) -> dict[str, Any]:
    return {
        "examples": sum(statistics.targets.values()),
        **targets.describe(statistics.targets),
        **{
            name: _spread(one for size, count in statistics.sizes.items() for one in [size[index]] * count)
            for index, name in enumerate(inputs.sizes)
        },
        **({"cut": _count_cut(statistics, inputs)} if isinstance(inputs, Tokens) else {}),
        "bad": len(statistics.bad),
    }


def _count_cut(statistics: SplitStatistics, inputs: Tokens) -> int:
    """Return the number of texts with more tokens than an example has."""
    (length,) = inputs.shape
    return sum(count for (tokens,), count in statistics.sizes.items() if tokens > length)


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


def _find_two_targets(statistics: dict[str, SplitStatistics], targets: CheckedTargets) -> list[dict[str, str]]:
    """Return the images whose targets differ, over all splits: for each target, in words, the name of an example."""
    images: dict[bytes, dict[Target, str]] = {}
    for found in statistics.values():
        for content, examples in found.contents.items():
            for name, target in examples:
                images.setdefault(content, {}).setdefault(target, name)
    return [
        {targets.in_words(target): name for target, name in by_target.items()}
        for by_target in images.values()
        if contradict(by_target)
    ]


# ---- tables ----


def _print_tables(label: str, result: dict[str, Any], targets: CheckedTargets, inputs: Inputs) -> None:
    splits = [name for name in SPLIT_WORDS if name in result]
    targets.show(label, {split: result[split] for split in splits})
    table(
        "sizes, smallest / median / largest" if inputs.sizes else "examples",
        ("split", inputs.asked, *reversed(inputs.sizes), *_counted(inputs)),
        [_format_row(split, result[split], inputs) for split in splits],
    )
    bad, duplicates, twice = result["bad"], result["duplicates"], result[targets.twice]
    one = inputs.asked.removesuffix("s")
    if bad["count"]:
        say(format_things(bad["count"], "is bad", "are bad"))
    _say_first(bad, lambda example: f"{example['name']} {example['reason']}")
    if others := " and ".join(splits[1:]):
        tell = warn if duplicates["count"] else say
        shared = format_things(duplicates["count"], f"{others} {one} is", f"{others} {inputs.asked} are")
        tell(f"{shared} also in the training split, {inputs.alike}")
    _say_first(duplicates, lambda pair: f"{pair.get('test', pair.get('val'))} is {pair['train']}")
    if twice["count"]:
        warn(f"{format_things(twice['count'], one)} {targets.that_are_twice}, {inputs.alike}")
    _say_first(twice, lambda by_target: " is ".join(by_target.values()))


def _verdict(result: dict[str, Any], targets: CheckedTargets, inputs: Inputs) -> str:
    """Return the last line: the data can be trained on, or what must be looked at before."""
    splits = [name for name in SPLIT_WORDS if name in result]
    bad, twice, one = result["bad"]["count"], result[targets.twice]["count"], inputs.asked.removesuffix("s")
    odd = [format_things(bad, "bad example")] if bad else []
    for split in splits[1:]:
        repeated = sum(split in pair for pair in result["duplicates"]["examples"])
        if repeated:
            odd.append(f"{format_things(repeated, f'{SPLIT_WORDS[split]} {one}')} also in the training split")
    if twice:
        odd.append(f"{format_things(twice, one)} {targets.that_are_twice}")
    for split in splits:
        odd += targets.find_odd(f"{SPLIT_WORDS[split]} {inputs.asked}", result[split])
    return f"Look at this before you train: {', '.join(odd)}." if odd else "The data can be trained on."


def _format_row(split: str, summary: dict[str, Any], inputs: Inputs) -> tuple[str, ...]:
    sizes = (summary[key] for key in reversed(inputs.sizes))
    shown = (cell(size, lambda size: " / ".join(map(str, size.values()))) for size in sizes)
    return split, f"{summary['examples']:,}", *shown, *(str(summary[key]) for key in _counted(inputs))


def _counted(inputs: Inputs) -> tuple[str, ...]:
    """Return what is counted in each split, beside its examples."""
    return ("cut", "bad") if isinstance(inputs, Tokens) else ("bad",)


def _say_first(found: dict[str, Any], describe: Callable[[dict[str, str]], str]) -> None:
    for example in found["examples"][:_SHOWN]:
        say(f"  {describe(example)}")
    _say_more(found["count"])


def _say_more(count: int) -> None:
    if count > _SHOWN:
        say(f"  ... and {count - _SHOWN:,} more")
