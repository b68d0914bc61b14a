"""report.html: runs side by side in one file that needs no network. Its parts are in the folder page/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accumtrain.config.jobs import JOBS
from accumtrain.console import format_bytes
from accumtrain.fields import is_finite_number
from accumtrain.report.compare import ComparedRun, group_runs, list_columns
from accumtrain.report.pictures import list_curves, shorten_run_names
from accumtrain.runs.files import write_atomic

PARTS = Path(__file__).with_suffix("")  # the folder beside this file
AXES = ("step", "epoch", "seconds")  # of a record
MOST_POINTS = 300  # of a run's curve of one metric


def write_page(runs: Sequence[ComparedRun], path: Path) -> None:
    """Write the page of runs to `path`, beside their folders. All text of runs is shown as text.

    Args:
        runs: in the order of `group_runs`.
    """
    texts = {file.name: file.read_text(encoding="utf-8") for file in PARTS.iterdir() if file.is_file()}
    data = json.dumps(_content(runs, path.parent), allow_nan=False, separators=(",", ":"))
    texts["data"] = data.replace("<", r"\u003c")  # only < can end a script or begin a comment in it
    page = re.sub(r"@@([\w.]+)@@", lambda part: texts[part[1]], texts["page.html"])
    write_atomic(path, page)


def _content(runs: Sequence[ComparedRun], directory: Path) -> dict[str, Any]:
    metrics = list_curves([run.records for run in runs])
    columns = list_columns(runs)
    beginning, short = shorten_run_names([run.name for run in runs])
    curves = [_curves(run.records, metrics) for run in runs]
    shown = sum(len(curve["step"]) for of_run in curves for curve in of_run.values())
    return {
        "title": f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} in {directory}",
        "beginning": beginning,
        "metrics": metrics,
        "axes": AXES,
        "points": {"shown": shown, "of": sum(len(run.records) for run in runs)},
        "kinds": list(dict.fromkeys(kind for run in runs for kind in _memory(run))),
        "groups": _groups(runs),
        "columns": [
            {"title": column.title, "configured": column.configured, "along": column.along} for column in columns
        ],
        "runs": [
            {
                "name": run.name,
                "label": short[index],
                "cells": [column.cells[index] for column in columns],
                "curves": curves[index],
                "memory": {kind: [size, format_bytes(size)] for kind, size in _memory(run).items()},
                "speed": run.number("examples_per_second"),
            }
            for index, run in enumerate(runs)
        ],
    }


def _groups(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Return for each group of runs its title, the place of its best run, its size, and the column that ranks it."""
    indices = {id(run): index for index, run in enumerate(runs)}
    return [
        {
            "title": group.title,
            "best": indices[id(group.runs[0])],
            "size": len(group.runs),
            "ranked_by": _ranked_by(group.runs[0]),
        }
        for group in group_runs(runs)
    ]


def _ranked_by(best: ComparedRun) -> str:
    """Return the title of the first column by which the best run of a group is ranked."""
    train = JOBS["train"]
    keys = {key: title for title, (key, _) in train.columns_of([best.summary]).items()}
    return next(keys[key] for key, _ in train.ranking_of(best.summary) if key in keys)


def _memory(run: ComparedRun) -> dict[str, float]:
    """Return the bytes of each kind that takes some."""
    kinds = run.summary.get("memory_by_kind")
    return {k: v for k, v in kinds.items() if is_finite_number(v) and v > 0} if isinstance(kinds, dict) else {}


def _curves(records: Iterable[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, dict[str, list[float | None]]]:
    """Return by split the values of AXES and `metrics` at the points to draw, in the order of the updates."""
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if is_finite_number(record["step"]):
            splits.setdefault(str(record["split"]), []).append(record)
    return {split: _thin(of_split, metrics) for split, of_split in splits.items()}


def _thin(records: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, list[float | None]]:
    taken: set[int] = set()
    for metric in metrics:
        known = [number for number, record in enumerate(records) if is_finite_number(record.get(metric))]
        taken.update(known[index] for index in thin_curve([records[number][metric] for number in known], MOST_POINTS))
    drawn = [records[number] for number in sorted(taken)]
    return {name: [_short(record.get(name)) for record in drawn] for name in (*AXES, *metrics)}


def thin_curve(values: Sequence[float], most: int) -> list[int]:
    """Return the indices of at most `most` values: first, last, and smallest and largest of each of equal stretches.

    So a long curve is drawn with few points and keeps its peaks.

    Args:
        most: at least 4. Of so many values or fewer, all are taken.
    """
    if len(values) <= most:
        return list(range(len(values)))
    stretches = (most - 2) // 2
    taken = {0, len(values) - 1}
    for number in range(stretches):
        stretch = range(len(values) * number // stretches, len(values) * (number + 1) // stretches)
        taken |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return sorted(taken)


def _short(value: Any) -> float | None:
    """Return a number rounded to seven digits, more than a screen can show; None for a value that is no number."""
    return float(f"{value:.7g}") if is_finite_number(value) else None
