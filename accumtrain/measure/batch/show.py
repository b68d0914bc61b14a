"""The results of job=batch for a person: the table, and batch.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accumtrain.config.jobs import cell
from accumtrain.console import format_bytes, format_measure, format_speed, say, table
from accumtrain.measure.batch.results import BatchRow, BranchResult, find_speeds
from accumtrain.report.pictures import COLOURS, new_figure, save_figure, without_math

STYLES = ("-", "--", ":")  # of the factors on the rate


def print_rows(title: str, rows: Sequence[BatchRow], seconds: float | None) -> None:
    """Print a row for each batch and factor, and the seconds of training after which the loss in time is."""
    has_beta2 = any(row.beta2 is not None for row in rows)
    columns = ["batch", "steps", "rate", *(["beta2"] if has_beta2 else []), "loss", "spread"]
    columns += ["in time", "examples/s", "peak"]
    table(title, columns, [_cells(row, has_beta2=has_beta2) for row in rows])
    if seconds is not None:
        say(f"in time: the loss after {seconds:.3g} s of training, as long as the fastest branch took")


def _cells(row: BatchRow, *, has_beta2: bool) -> list[str]:
    return [
        str(row.batch),
        str(row.steps),
        cell(row.rate, ".3g"),
        *([cell(row.beta2, ".4g")] if has_beta2 else []),
        cell(row.loss, format_measure) if row.completed else row.ended,
        cell(row.spread, format_measure),
        cell(row.loss_in_time, format_measure),
        cell(row.examples_per_second, format_speed),
        cell(row.peak_bytes, format_bytes),
    ]


def draw_branches(results: Sequence[BranchResult], title: str, path: Path) -> None:
    """Draw held-out loss against examples and against seconds, a line for each branch, a colour for each batch."""
    figure = new_figure(11, 4.5)
    left, right = figure.subplots(1, 2, sharey=True)
    batches = list(dict.fromkeys(result.branch.batch for result in results))
    factors = list(dict.fromkeys(result.branch.factor for result in results))
    speeds = find_speeds(results)
    for result in (result for result in results if result.curve):
        style = _style(result, batches, factors)
        examples, losses = zip(*((point.examples, point.loss) for point in result.curve), strict=True)
        left.plot(examples, losses, **style)
        if (speed := speeds.get(result.kind)) is not None:
            right.plot([made / speed for made in examples], losses, **style)
    left.set(xlabel="examples", ylabel="held-out loss")
    right.set(xlabel="seconds of training")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small", frameon=False)
    figure.suptitle(without_math(title), fontsize="medium")
    save_figure(figure, path)


def _style(result: BranchResult, batches: Sequence[int], factors: Sequence[float]) -> dict[str, Any]:
    """Return the style of a branch. Of the orders of the examples the first is in the legend."""
    branch = result.branch
    word = f"batch {branch.batch}" + (f", rate x {branch.factor:g}" if len(factors) > 1 else "")
    return {
        "color": f"C{batches.index(branch.batch) % COLOURS}",
        "ls": STYLES[factors.index(branch.factor) % len(STYLES)],
        "lw": 1.8 if branch.order == 0 else 0.8,
        "marker": ".",
        "label": word if branch.order == 0 else None,
    }
