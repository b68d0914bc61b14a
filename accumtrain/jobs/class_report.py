"""What job=evaluate tells beside means: a table of classes, the confusion matrix, and the worst mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accumtrain.console import say, table
from accumtrain.data.source import Data
from accumtrain.data.viewed import viewed
from accumtrain.engine.class_answers import ClassAnswers
from accumtrain.kinds.jobs import cell
from accumtrain.runs.confusion import ClassResult, Confusion
from accumtrain.runs.confusion_picture import draw_confusion
from accumtrain.runs.files import disk_errors
from accumtrain.runs.mistakes import Mistake, draw_mistakes

MOST_CLASSES = 2000  # of a confusion matrix; it takes 32 MB then
SHOWN = 15  # classes that are printed
PAIRS = 100  # that are written down
CONFUSION, MISTAKES = "confusion.png", "mistakes.png"


def class_answers(classes: int, replicas: int) -> ClassAnswers | None:
    """What collects the answers by class; None if there are no classes, or too many, which it says."""
    if classes > MOST_CLASSES:
        say(f"{classes:,} classes: up to {MOST_CLASSES:,} there are a table of classes and pictures, too")
    return ClassAnswers(classes, replicas) if 0 < classes <= MOST_CLASSES else None


def report_classes(
    counts: list[list[int]],
    mistakes: Sequence[Mistake],
    class_names: list[str],
    data: Data,
    split: str,
    folder: Path,
) -> dict[str, Any]:
    """Prints the table and draws the pictures into the folder of the run.

    Args:
        counts: the confusion matrix, as in Confusion.
        split: the name of the split that the mistakes are in.

    Returns:
        classes (lowest accuracy first), confused (pairs), mistakes (highest loss first), pictures (their files).

    Raises:
        CheckpointError: a picture can't be written.
    """
    confusion = Confusion(class_names, counts)
    classes = confusion.classes
    _show(classes)
    pictures = [folder / CONFUSION]
    draw_confusion(confusion, f"{folder.name}, {sum(confusion.examples):,} {split} examples", pictures[0])
    sheet = folder / MISTAKES
    if mistakes:
        images = viewed(data, split, [each.position for each in mistakes])
        draw_mistakes(images, mistakes, confusion.names, sheet)
        pictures.append(sheet)
    else:
        with disk_errors(sheet):
            sheet.unlink(missing_ok=True)  # that of an earlier evaluation
        say("no mistakes")
    say(f"drawn: {' and '.join(map(str, pictures))}")
    return {
        "classes": [asdict(each) for each in classes],
        "confused": [_named(asdict(each), confusion.names, "true", "predicted") for each in confusion.confused(PAIRS)],
        "mistakes": [_named(asdict(each), confusion.names, "label", "predicted") for each in mistakes],
        "pictures": list(map(str, pictures)),
    }


def _named(record: dict[str, Any], names: Sequence[str], *keys: str) -> dict[str, Any]:
    return record | {key: names[record[key]] for key in keys}


def _show(classes: Sequence[ClassResult]) -> None:
    rows = [
        (each.name, f"{each.examples}", cell(each.accuracy, ".4f"), cell(each.precision, ".4f"))
        for each in classes[:SHOWN]
    ]
    table("classes, lowest accuracy first", ("class", "examples", "accuracy", "precision"), rows)
    if len(classes) > SHOWN:
        say(f"... and {len(classes) - SHOWN:,} more")
