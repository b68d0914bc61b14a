"""job=report: several runs side by side, as a table, a page (report.html) and learning curves (report.png)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import LOCAL_PATH
from accumtrain.report.compare import group_runs, list_columns, read_ranked
from accumtrain.report.page import write_page
from accumtrain.report.pictures import draw_curves, shorten_run_names


def report_runs(config: Config) -> dict[str, Any]:
    """Compare report.runs, or all runs in run.dir. Print a table, best first, write report.html and draw report.png.

    Runs of different data, and of different metrics, have a table each. A run whose files are damaged is named and left
    out.

    Returns:
        status; in `ranked` for each table `title` and the names of its `runs`, best first; and in `runs` the summary of
        each run.

    Raises:
        ConfigError: a run is not there.
        CheckpointError: no run can be read.
    """
    directory = Path(config.run.dir)
    names = config.report.runs or sorted(path.parent.name for path in directory.glob("*/summary.json"))
    if not names:
        raise ConfigError(f"run.dir={directory}: holds no finished run to report; train one, or give another run.dir")
    for name in names:
        LOCAL_PATH.check("report.runs", name)
    ranked = read_ranked([directory / name for name in names])
    if not ranked:
        raise CheckpointError(f"none of the {len(names)} runs can be read; put back copies of their files")
    groups = group_runs(ranked)
    beginning, short = shorten_run_names([run.name for run in ranked])
    labels = {run.name: label for run, label in zip(ranked, short, strict=True)}
    for group in groups:
        columns = list_columns(group.runs)
        title = f"runs in {directory} on {group.title}, best first"
        rows = [
            [labels[run.name], *(column.cells[index][0] for column in columns)] for index, run in enumerate(group.runs)
        ]
        table(title, ["run", *(column.title for column in columns)], rows)
    if beginning:
        say(f"names are shown without their common beginning, {beginning}")
    if len(groups) > 1:
        say("runs of different data, or of different metrics, are not ranked against each other")
    page, picture = directory / "report.html", directory / "report.png"
    write_page(ranked, page)
    draw_curves({run.name: run.records for run in ranked}, picture)
    say(f"{page} compares them for a browser, {picture} has the learning curves")
    return {
        "status": "completed",
        "ranked": [{"title": group.title, "runs": [run.name for run in group.runs]} for group in groups],
        "runs": {run.name: run.summary for run in ranked},
    }
