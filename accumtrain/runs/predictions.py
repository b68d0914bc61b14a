"""The answers of job=predict as files: a row for each image in a CSV file, or an object in a JSON Lines file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accumtrain.runs.files import write_atomic
from accumtrain.runs.folder import make_folder

CSV, JSONL = ".csv", ".jsonl"
NAME = "predictions"


@dataclass(frozen=True)
class Answer:
    """The most probable classes of an image, each with its probability, falling."""

    file: str
    top: list[tuple[str, float]]


def answer_files(output: str | None, folder: Path) -> list[Path]:
    """The files that predict.output names; `folder` is where they go if it is None."""
    place = folder if output is None else Path(output)
    return [place] if place.suffix in (CSV, JSONL) else [place / f"{NAME}{suffix}" for suffix in (CSV, JSONL)]


def write_answers(file: Path, answers: Sequence[Answer], top: int) -> None:
    """Replaces a file by one with these answers, `top` classes each. Its folder is made.

    Raises:
        ConfigError: the folder can't be made.
        CheckpointError: the file can't be written.
    """
    make_folder(file.parent)
    write_atomic(file, _csv(answers, top) if file.suffix == CSV else _jsonl(answers))


def _csv(answers: Sequence[Answer], top: int) -> str:
    """Columns file, class, probability, class_2, probability_2, ..."""
    places = ["", *(f"_{place}" for place in range(2, top + 1))]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["file", *(f"{name}{place}" for place in places for name in ("class", "probability"))])
    rows.writerows([answer.file, *(value for pair in answer.top for value in _rounded(pair))] for answer in answers)
    return text.getvalue()


def _jsonl(answers: Sequence[Answer]) -> str:
    """Objects {"file": ..., "class": ..., "probability": ..., "top": [{"class": ..., "probability": ...}, ...]}."""
    tops = [[_object(pair) for pair in answer.top] for answer in answers]
    objects = ({"file": answer.file, **top[0], "top": top} for answer, top in zip(answers, tops, strict=True))
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in objects)


def _object(pair: tuple[str, float]) -> dict[str, str | float]:
    return dict(zip(("class", "probability"), _rounded(pair), strict=True))


def _rounded(pair: tuple[str, float]) -> tuple[str, float]:
    """The pair with the digits that a float32 has."""
    return pair[0], float(f"{pair[1]:.9g}")
