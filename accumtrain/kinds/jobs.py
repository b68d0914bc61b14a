"""The jobs: where each one's code is, what it writes, and how a sweep compares several of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accumtrain.console import format_bytes, format_seconds
from accumtrain.kinds.table import Table, load

Column = tuple[str, "str | Callable[[Any], str]"]  # dotted key of the result, how it is shown


@dataclass(frozen=True)
class Job:
    """A row of the jobs.

    Attributes:
        run: a function, or "module:function", that takes the configuration and returns the job's result, None on a process that only
            helps another one.
        file: what the result is written to, in the run's folder.
        compares_runs: its folder is run.dir, not that of one run.
        needs_a_run: there must be a trained run in the folder.
        probed: learns before it starts whether it fits into the memory.
        in_children: its work happens in processes of its own; this one imports no TensorFlow.
        shared_by_workers: several processes can do it together.
        result_when_stopped: `file` is written too where the job is stopped or diverges.
        without_effect: keys that say nothing about the memory it takes.
        ranking: dotted keys of the result, each with -1 if larger is better and 1 if smaller is. A sweep ranks by
            them, and a sweeper maximizes the first.
        columns: what a sweep's table shows, by title.
    """

    name: str
    run: str | Callable[..., Any]
    file: str
    compares_runs: bool = False
    needs_a_run: bool = False
    probed: bool = False
    in_children: bool = False
    shared_by_workers: bool = False
    result_when_stopped: bool = False
    without_effect: tuple[str, ...] = ()
    ranking: tuple[tuple[str, int], ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)

    def function(self) -> Callable[..., Any]:
        """What `run` names, imported now."""
        return load(self.run)


BY_ACCURACY = (("test.accuracy", -1), ("test.loss", 1))
TESTED: dict[str, Column] = {
    "step": ("step", "d"),
    "test accuracy": ("test.accuracy", ".4f"),
    "test loss": ("test.loss", ".4f"),
    "examples/s": ("examples_per_second", ",.0f"),
    "seconds": ("seconds", format_seconds),
}
MEASURED: dict[str, Column] = {
    "images/s": ("images_per_second.median", ",.4g"),
    "peak of tensors": ("memory.tensor_peak_bytes", format_bytes),
    "resident": ("memory.rss_peak_bytes", format_bytes),
    "of a matrix product": ("share_of_matmul", ".0%"),
    "first update": ("seconds_to_first_update.total", format_seconds),
}

JOBS: Table[Job] = Table("job")
JOBS.add(
    Job(
        "train",
        "accumtrain.jobs.train:run",
        "summary.json",
        probed=True,
        shared_by_workers=True,
        result_when_stopped=True,
        ranking=BY_ACCURACY,
        columns=TESTED,
    ),
    Job(
        "evaluate",
        "accumtrain.jobs.evaluate:run",
        "evaluation.json",
        needs_a_run=True,
        shared_by_workers=True,
        without_effect=("model.memory", "optim"),
        ranking=BY_ACCURACY,
        columns=TESTED,
    ),
    Job("verify", "accumtrain.jobs.verify:run", "verify.json", without_effect=("model.memory",)),
    Job("plan", "accumtrain.jobs.plan:run", "plan.json", in_children=True),
    Job(
        "bench",
        "accumtrain.jobs.bench:run",
        "bench.json",
        probed=True,
        ranking=(("images_per_second.median", -1),),
        columns=MEASURED,
    ),
    Job("report", "accumtrain.jobs.report:run", "report.json", compares_runs=True),
)
