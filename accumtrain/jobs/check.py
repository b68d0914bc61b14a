"""job=check: reads a whole data set once and says what is in it, what is bad, and what is in two splits or classes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.data.census import Census, take_census
from accumtrain.data.open_data import open_data
from accumtrain.data.source import SPLIT_WORDS
from accumtrain.errors import DataError
from accumtrain.progress import counting
from accumtrain.runs.folder import result_file

SHOWN = 20  # classes, bad examples and duplicates that are printed; the file has all
SIZE = "{} / {} / {}"


def run(config: Config) -> dict[str, Any]:
    """Prints tables and returns the content of check.json. Trains nothing.

    Raises:
        DataError: examples are bad, or the data set can't be opened at all.
    """
    data = open_data(replace(config.data, on_error="skip"), config.run.seed)  # bad examples are listed, all of them
    splits = data.whole_splits
    censuses = {}
    for name, split in splits.items():
        with counting(f"reading {name}", split.size) as report:
            censuses[name] = take_census(split, name, data.num_classes, report)
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


def _summary(census: Census, classes: list[str]) -> dict[str, Any]:
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


def _bad(censuses: dict[str, Census]) -> list[dict[str, str]]:
    return [
        {"split": split, "name": bad.name, "reason": bad.reason}
        for split, census in censuses.items()
        for bad in census.bad
    ]


def _duplicates(censuses: dict[str, Census]) -> list[dict[str, str]]:
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


def _of_two_classes(censuses: dict[str, Census], classes: list[str]) -> list[dict[str, str]]:
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
