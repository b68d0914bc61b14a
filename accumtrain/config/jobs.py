"""The jobs: the function of each, the file that it writes, and the ranking of its results in a sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from accumtrain.console import format_bytes, format_measure, format_seconds
from accumtrain.fields import value_at
from accumtrain.registry import Registry

Scope: TypeAlias = Literal["train", "try", "trained", "runs"]
Column = tuple[str, "str | Callable[[Any], str]"]  # dotted key of the result; format spec, or function to a text
ACCURACY = "accuracy"


def cell(value: Any, form: str | Callable[[Any], str]) -> str:
    """Return the text of `value` in a table; "-" for None."""
    if value is None:
        return "-"
    return format(value, form) if isinstance(form, str) else form(value)


@dataclass(frozen=True)
class Job:
    """An entry of the jobs.

    Attributes:
        run: a function from the configuration to the job's result, or "module:function". It returns None on a worker
            that is not the chief.
        file: name of the file of the result, in the run's folder.
        about: what the job does, a sentence for --help and docs/reference.md.
        check: a function of the configuration that raises an AccumtrainError if the job can't begin, or
            "module:function"; without TensorFlow.
        scope: "train" begins or continues the run in its folder. "try" needs no run and leaves none; where run.name is
            that of a run, it takes its values. "trained" needs a trained run in the folder. "runs" looks at runs from
            outside, and writes into run.dir.
        measures_other_data: its command may choose other data than the run's.
        probed: a probe may check before the job starts that it fits into the memory.
        measures_graphs: it measures or checks compiled micro-steps alone, so it can't go with debug.eager.
        chooses_kernels: a rule may choose the kernels of the CPU (runs/kernels.py).
        on_jax: it can compute with device.runtime=jax.
        in_children: child processes do the work, or none is needed; this process does not import TensorFlow.
        told_in_full: all of its result is on the screen, so a file that can't be written is no error.
        shared_by_workers: several workers can run the job together.
        preemptible: the same command continues the job after a signal, so this ends it with exit code 75.
        without_effect: keys that do not change how much memory the job takes.
        ranking: dotted keys of the result, each with -1 if larger is better and 1 if smaller is better. A sweep ranks
            by them in order, and a sweeper maximizes the first. The metric that `best_by` of the result names takes the
            place of an accuracy.
        columns: columns of a sweep's table, by title.
    """

    name: str
    run: str | Callable[..., Any]
    file: str
    about: str = ""
    check: str | Callable[..., None] | None = None
    scope: Scope = "try"
    measures_other_data: bool = False
    probed: bool = False
    measures_graphs: bool = False
    chooses_kernels: bool = False
    on_jax: bool = False
    in_children: bool = False
    told_in_full: bool = False
    shared_by_workers: bool = False
    preemptible: bool = False
    without_effect: tuple[str, ...] = ()
    ranking: tuple[tuple[str, int], ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)

    def ranking_of(self, result: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
        """Return the ranking of a result. Its `best_by`, if there is one, stands in the place of the accuracy."""
        by = result.get("best_by") or {"metric": ACCURACY, "higher_is_better": True}
        sign = -1 if by["higher_is_better"] else 1
        return tuple(
            (f"{key.removesuffix(ACCURACY)}{by['metric']}", sign) if key.endswith(f".{ACCURACY}") else (key, given)
            for key, given in self.ranking
        )

    def rank(self, result: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the sort key of a result: smaller is better. A value that is missing comes after others."""
        values = [(value_at(result, key), sign) for key, sign in self.ranking_of(result)]
        return tuple(math.inf if value is None else sign * value for value, sign in values)

    def columns_of(self, results: Iterable[Mapping[str, Any]]) -> dict[str, Column]:
        """Return the columns of a table of results. The metrics that rank them stand in the place of the accuracy."""
        ranked_by = [(result.get("best_by") or {}).get("metric", ACCURACY) for result in results] or [ACCURACY]
        metrics = dict.fromkeys(name for name in ranked_by if name != "loss")  # the loss has a column of its own
        return {
            title.replace(ACCURACY, metric): (key.replace(ACCURACY, metric), form)
            for title, (key, form) in self.columns.items()
            for metric in (metrics if key.endswith(f".{ACCURACY}") else [ACCURACY])
        }

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"job {self.name}: scope={self.scope!r} is not one of {', '.join(get_args(Scope))}")


TEST_RESULT: dict[str, Column] = {
    "test accuracy": ("test.accuracy", format_measure),
    "test loss": ("test.loss", format_measure),
}
SPEED: Column = ("examples_per_second", ",.0f")
SECONDS: Column = ("seconds", format_seconds)

JOBS: Registry[Job] = Registry("job")
JOBS.add(
    Job(
        "train",
        "accumtrain.train.train:train",
        "summary.json",
        "Train a model, or continue its run.",
        scope="train",
        probed=True,
        chooses_kernels=True,
        shared_by_workers=True,
        preemptible=True,
        on_jax=True,
        ranking=(("best.accuracy", -1), ("best.loss", 1)),
        columns={
            "step": ("step", "d"),
            "epoch": ("epoch", ".4g"),
            "best accuracy": ("best.accuracy", format_measure),
            "best loss": ("best.loss", format_measure),
            **TEST_RESULT,
            "examples/s while training": SPEED,  # the seconds hold the start and the evaluations, too
            "seconds": SECONDS,
        },
    ),
    Job(
        "evaluate",
        "accumtrain.train.trained.evaluate:evaluate_run",
        "evaluation.json",
        "Evaluate a trained run, on its test split or on all of other data with labels.",
        scope="trained",
        measures_other_data=True,
        shared_by_workers=True,
        preemptible=True,
        without_effect=("model.memory",),
        on_jax=True,
        ranking=(("test.accuracy", -1), ("test.loss", 1)),
        columns={
            "updates": ("step", ",.0f"),
            "epoch": ("epoch", ".4g"),
            **TEST_RESULT,
            "examples/s": SPEED,
            "seconds": SECONDS,
        },
    ),
    Job(
        "verify",
        "accumtrain.measure.verify.job:verify_run",
        "verify.json",
        "Prove on this machine that memory policies and accumulation are exact.",
        measures_graphs=True,
        chooses_kernels=True,
        on_jax=True,
        without_effect=("model.memory",),
    ),
    Job(
        "plan",
        "accumtrain.measure.plan:plan_run",
        "plan.json",
        "Find what fits into the memory, what takes it, and how fast it is.",
        measures_graphs=True,
        chooses_kernels=True,
        in_children=True,
        on_jax=True,
    ),
    Job(
        "memory",
        "accumtrain.measure.memory:compare_policies",
        "memory.json",
        "Compare what stored, recomputed and reversed activations take.",
        check="accumtrain.measure.memory:check_memory",
        measures_graphs=True,
        chooses_kernels=True,
        in_children=True,
        on_jax=True,
    ),
    Job(
        "bench",
        "accumtrain.measure.bench:bench_run",
        "bench.json",
        "Measure speed and memory of updates.",
        probed=True,
        measures_graphs=True,
        chooses_kernels=True,
        on_jax=True,
        ranking=(("examples_per_second.median", -1),),
        columns={
            "examples/s": ("examples_per_second.median", ",.4g"),
            "peak of tensors": ("memory.tensor_peak_bytes", format_bytes),
            "resident": ("memory.rss_peak_bytes", format_bytes),
            "of a matrix product": ("share_of_matmul", ".0%"),
            "first update": ("seconds_to_first_update.total", format_seconds),
        },
    ),
    Job(
        "lr",
        "accumtrain.measure.range_test:find_learning_rate",
        "lr.json",
        "Suggest a learning rate, by a range test.",
        probed=True,
        chooses_kernels=True,
        on_jax=True,
        columns={
            "suggested rate": ("suggested", ".3g"),
            "lowest loss at": ("lowest.rate", ".3g"),
            "lowest loss": ("lowest.loss", ".4f"),
            "updates": ("updates", "d"),
        },
    ),
    Job(
        "batch",
        "accumtrain.measure.batch.job:find_batch",
        "batch.json",
        "Find the batch that learns most, by branches of a run.",
        check="accumtrain.measure.batch.check:check_batch_test",
        probed=True,
        chooses_kernels=True,
        in_children=True,
        on_jax=True,
        preemptible=True,
        ranking=(("best.loss", 1),),
        columns={
            "best batch": ("best.batch", "d"),
            "loss": ("best.loss", format_measure),
            "less than the next": ("best.margin", format_measure),
        },
    ),
    Job(
        "check",
        "accumtrain.data.checking.check:check_data",
        "check.json",
        "Read all of the data and count what is in it.",
        columns={
            "training images": ("train.examples", ",d"),
            "test images": ("test.examples", ",d"),
            "bad": ("bad.count", ",d"),
            "in both": ("duplicates.count", ",d"),
        },
    ),
    Job(
        "predict",
        "accumtrain.train.trained.predict:predict",
        "predict.json",
        "Predict what is on images by a trained run.",
        check="accumtrain.data.local_files:check_predict",
        scope="trained",
        preemptible=True,
        without_effect=("model.memory",),
        columns={"step": ("step", "d"), "examples": ("examples", ",d"), "bad": ("bad.count", ",d")},
    ),
    Job(
        "export",
        "accumtrain.export.export:export_run",
        "export.json",
        "Write a trained run into a file for other programs.",
        check="accumtrain.config.check:check_export",
        scope="trained",
        without_effect=("model.memory",),
        columns={
            "step": ("step", "d"),
            "format": ("format", "s"),
            "size": ("bytes", format_bytes),
            "difference": ("largest_difference", ".1e"),
        },
    ),
    Job(
        "info",
        "accumtrain.report.info:show_info",
        "info.json",
        "Show what this machine has and lacks, or where a run came from.",
        scope="runs",
        in_children=True,
        told_in_full=True,
    ),
    Job(
        "report",
        "accumtrain.report.report:report_runs",
        "report.json",
        "Compare runs, as pictures and a page.",
        scope="runs",
        in_children=True,
    ),
)
