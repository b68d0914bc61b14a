"""job=report: several runs side by side, as a table, a page (report.html) and learning curves (report.png)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.report.compare import list_results, read_ranked
from accumtrain.report.page import write_page
from accumtrain.report.pictures import draw_curves


def report_runs(config: Config) -> dict[str, Any]:
    """Compare report.runs, or all runs in run.dir. Print a table, best first, write report.html and draw report.png.

    A run whose files are damaged is named and left out.

    Returns:
        status, and in `runs` the summary of each run, best first.

    Raises:
        ConfigError: a run is not there.
        CheckpointError: no run can be read.
    """
    directory = Path(config.run.dir)
    names = config.report.runs or sorted(path.parent.name for path in directory.glob("*/summary.json"))
    if not names:
        raise ConfigError(f"run.dir={directory}: holds no finished run to report")
    ranked = read_ranked([directory / name for name in names])
    if not ranked:
        raise CheckpointError(f"none of the {len(names)} runs can be read; put back copies of their files")
    columns = {"run": [run.name for run in ranked]}
    columns |= {title: [text for text, _ in cells] for title, cells in list_results(ranked).items()}
    table(f"runs in {directory}, best first", list(columns), list(zip(*columns.values(), strict=True)))
    page, picture = directory / "report.html", directory / "report.png"
    write_page(ranked, page)
    draw_curves({run.name: run.records for run in ranked}, picture)
    say(f"{page} compares them for a browser, {picture} has the learning curves")
    return {"status": "completed", "runs": {run.name: run.summary for run in ranked}}
