"""Runs side by side, as their files show them: read, ranked, and the keys in which their configurations differ.

Runs are ranked against each other only if the same metric, or the same loss, was measured on the same data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from accumtrain.config.jobs import JOBS, cell
from accumtrain.config.keys import flatten_groups, label_of
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.roles import keys_with
from accumtrain.console import format_bytes, format_things, warn
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import Role, format_value, is_finite_number, value_at
from accumtrain.runs.contents import measured, read_config, read_records, read_summary
from accumtrain.runs.names import CLASSES

MEMORY = ("activations", "resident")  # of a run, see ComparedRun.memory
SPLITS = ("train", "val", "test")
NAMING = ("title", "name", "kind")  # last parts of the keys that name the choice of their group, best first
OUTCOME = ("best.", "seconds")  # beginnings of the keys of a summary that come before the configuration


@dataclass(frozen=True)
class ComparedRun:
    """A run as its files show it.

    Attributes:
        records: the records of metrics.jsonl.
        config: its values by dotted key. Empty if there is no config.yaml that can be read.
    """

    name: str
    summary: dict[str, Any]
    records: list[dict[str, Any]] = field(repr=False)
    config: dict[str, Any] = field(repr=False)

    def number(self, key: str) -> float | None:
        """Return the finite number at a dotted key of the summary, or None."""
        value = value_at(self.summary, key)
        return value if is_finite_number(value) else None

    @property
    def memory(self) -> dict[str, float | None]:
        """The bytes that differ most between runs, by kind: tensors at the peak beyond those that are always there."""
        peak, static = (self.number(f"memory.tensor_{kind}_bytes") for kind in ("peak", "static"))
        activations = None if peak is None or static is None else peak - static
        return dict(zip(MEMORY, (activations, self.number("memory.rss_peak_bytes")), strict=True))

    @property
    def ranked_by(self) -> str:
        """The dotted key of the summary that ranks the run first, such as best.accuracy."""
        return JOBS["train"].ranking_of(self.summary)[0][0]

    @property
    def data(self) -> str:
        """The name of the data that the run was trained on; "-" without a configuration."""
        return label_of("data", self.config)

    @property
    def measured_on(self) -> dict[str, Any]:
        """The facts of the data that runs must have in common: those of the split that chooses the best state.

        They are those of all splits where the split has no facts of its own but its size.
        """
        facts, split = self.summary.get("data"), self.summary.get("best_on")
        if facts is None:
            return {}
        of_others = tuple(f"data.{name}." for name in SPLITS if name != split)
        kept = {key: value for key, value in facts.items() if not key.startswith(of_others)}
        return kept if kept.keys() - {f"data.{split}.examples", CLASSES} else facts

    @property
    def loss(self) -> str:
        """The loss that ranks the run, as values of different losses can't be compared; empty if a metric does."""
        return describe_loss(self.config) if self.ranked_by.endswith(".loss") else ""

    @property
    def task(self) -> str:
        """The keys of the task, which decide what evaluations ask for, such as the share of masked tokens."""
        keys = [key for key in self.config if key.startswith("task.") and key != "task.kind"]
        return " ".join(f"{key}={format_value(self.config[key])}" for key in keys)

    @property
    def ranked_with(self) -> tuple[str, str]:
        """The data and the measure that runs must have in common to be ranked against each other, as texts."""
        facts = json.dumps([self.summary.get("best_on"), self.measured_on], sort_keys=True)
        return f"{self.data} {facts}", f"{self.ranked_by} {self.loss} {self.task}"

    @property
    def batch(self) -> str:
        """The text batch_size = micro-batch x accum.steps x replicas."""
        sizes = map(self.number, ("batch_size", "micro_batch_size", "accum_steps", "replicas"))
        return "{} = {} x {} x {}".format(*("-" if size is None else f"{size:.0f}" for size in sizes))


@dataclass(frozen=True)
class RankedRuns:
    """Runs that can be ranked against each other, best first: one metric was measured on the same data."""

    runs: list[ComparedRun]

    @property
    def title(self) -> str:
        """The data and the metric in words, such as `digits, by accuracy on 360 test images`."""
        first = self.runs[0]
        metric, split = first.ranked_by.rpartition(".")[2], first.summary.get("best_on")
        size = first.measured_on.get(f"data.{split}.examples")
        of_split = f" on {split}" if split else ""
        if is_finite_number(size):
            of_split = f" on {format_things(cast(int, size), f'{split} example')}"
        measure = " ".join(filter(None, (metric, first.loss, first.task)))
        return f"{first.data}, by {measure}{of_split}"


@dataclass(frozen=True)
class DifferingKey:
    """A key whose values differ between runs.

    Attributes:
        values: as a user writes them, one of each run. "-" where the run has no such key.
        along: other keys of the same group that differ, but not between runs that have this value in common.
    """

    key: str
    values: tuple[str, ...]
    along: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportColumn:
    """A column of the comparison.

    Attributes:
        cells: the text of each run, and the value to sort by.
        configured: it holds the values of a key, not results.
        along: the keys that follow from this one (see `DifferingKey`).
    """

    title: str
    cells: list[tuple[str, Any]]
    configured: bool = False
    along: tuple[str, ...] = ()


def describe_loss(config: Mapping[str, Any]) -> str:
    """Return the loss that evaluations measure, by the values of a run: its kind, and its keys if it has some."""
    kind, known = config.get("loss.kind"), REGISTRIES["loss"].entries
    left_out = known[str(kind)].config.NOT_EVALUATED if kind in known else ()
    keys = {key.removeprefix("loss."): value for key, value in config.items() if key.startswith("loss.")}
    shown = [
        f"{key}={f'{value:g}' if isinstance(value, float) else format_value(value)}"
        for key, value in keys.items()
        if key != "kind" and key.partition(".")[0] not in left_out
    ]
    return " ".join([*([] if kind is None else [str(kind)]), *shown])


def read_ranked(paths: Sequence[Path]) -> list[ComparedRun]:
    """Return the runs in the folders `paths`, in the order of `group_runs`.

    A run whose files are damaged is named and left out.

    Raises:
        ConfigError: a folder holds no run.
    """
    runs = []
    for path in paths:
        try:
            records = measured(read_records(path))
            runs.append(ComparedRun(path.name, _read_summary(path), records, _read_values(path)))
        except CheckpointError as error:
            warn(f"{path.name} is left out: {error}")
    return [run for group in group_runs(runs) for run in group.runs]


def read_run(path: Path, summary: dict[str, Any]) -> ComparedRun:
    """Return a run of a known summary, without its records."""
    return ComparedRun(path.name, summary, [], _read_values(path))


def group_runs(runs: Sequence[ComparedRun]) -> list[RankedRuns]:
    """Return the runs in groups that can be ranked, the largest group first."""
    groups: dict[tuple[str, ...], list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(run.ranked_with, []).append(run)
    ranked = [RankedRuns(sorted(group, key=lambda run: JOBS["train"].rank(run.summary))) for group in groups.values()]
    return sorted(ranked, key=lambda group: (-len(group.runs), group.title))


def find_differing_keys(runs: Sequence[ComparedRun]) -> list[DifferingKey]:
    """Return the keys in which the configurations differ, the choices such as optim.kind first.

    Keys that follow from the choice of their group go along with it, such as an optim.lr that differs only between
    runs of different optim.kind. A run without config.yaml is left out of the comparison.
    """
    known = [run.config for run in runs if run.config]
    kinds = [{group: {"kind": config.get(f"{group}.kind")} for group in REGISTRIES} for config in known]
    apart = {key for each in kinds for key in keys_with(Role.SESSION, each)}
    groups: dict[str, dict[str, list[str]]] = {}
    for key in dict.fromkeys(key for config in known for key in config):
        shown = [_format_cell(config, key) for config in known]
        if key not in apart and len(set(shown)) > 1:
            groups.setdefault(key.partition(".")[0], {})[key] = shown
    found = [
        DifferingKey(key, tuple(_format_cell(run.config, key) for run in runs), tuple(along))
        for differing in groups.values()
        for key, along in _gather(differing).items()
    ]
    return sorted(found, key=lambda differing: not _names_choice(differing.key))


def list_columns(runs: Sequence[ComparedRun]) -> list[ReportColumn]:
    """Return the columns that describe runs: the outcome, the configuration where it differs, then all else."""
    outcome, others = _list_results(runs)
    configured = [
        ReportColumn(differing.key, [(value, value) for value in differing.values], True, differing.along)
        for differing in find_differing_keys(runs)
    ]
    return [*outcome, *configured, *others]


def _list_results(runs: Sequence[ComparedRun]) -> tuple[list[ReportColumn], list[ReportColumn]]:
    """Return the columns of results: those of the outcome, and the others.

    The metric on the test split belongs to the outcome, unless this split has chosen the best states.
    """
    beginnings = [
        *OUTCOME,
        *(run.ranked_by.replace("best", "test") for run in runs if run.summary.get("best_on") != "test"),
    ]
    outcome: list[ReportColumn] = []
    others: list[ReportColumn] = []
    for title, (key, form) in JOBS["train"].columns_of(run.summary for run in runs).items():
        column = ReportColumn(title, [(cell(run.number(key), form), run.number(key)) for run in runs])
        (outcome if key.startswith(tuple(beginnings)) else others).append(column)
    status = ReportColumn("status", [(run.summary["status"],) * 2 for run in runs])
    (others if all(text == "completed" for text, _ in status.cells) else outcome).append(status)
    if len(group_runs(runs)) > 1:
        outcome.append(ReportColumn("data", [(run.data,) * 2 for run in runs]))
    others.append(ReportColumn("batch", [(run.batch, run.number("batch_size")) for run in runs]))
    for kind in MEMORY:
        others.append(ReportColumn(kind, [(cell(run.memory[kind], format_bytes), run.memory[kind]) for run in runs]))
    return outcome, others


def _gather(differing: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the keys of a group that are shown, each with those that go along.

    Args:
        differing: of each key that differs, the values of all runs.
    """
    gathered: dict[str, list[str]] = {}
    for key in sorted(differing, key=_says_more):
        choices = filter(_names_choice, gathered)
        lead = next((choice for choice in choices if _follows(differing[key], differing[choice])), None)
        if lead is None:
            gathered[key] = []
        else:
            gathered[lead].append(key)
    return gathered


def _follows(values: Sequence[str], lead: Sequence[str]) -> bool:
    """Return True if runs that have the same value of `lead` have the same one of `values`, too."""
    return len(set(zip(lead, values, strict=True))) == len(set(lead))


def _says_more(key: str) -> int:
    last = key.rpartition(".")[2]
    return NAMING.index(last) if last in NAMING else len(NAMING)


def _names_choice(key: str) -> bool:
    return _says_more(key) < len(NAMING)


def _format_cell(config: Mapping[str, Any], key: str) -> str:
    return format_value(config[key]) if key in config else "-"


def _read_summary(path: Path) -> dict[str, Any]:
    summary = read_summary(path)
    if summary is None:
        raise ConfigError(f"report.runs: {path} holds no run with a summary.json; train it first")
    return summary


def _read_values(path: Path) -> dict[str, Any]:
    file = path / "config.yaml"
    try:
        return dict(flatten_groups(read_config(file))) if file.exists() else {}
    except CheckpointError as error:
        warn(f"{path.name} is compared without its configuration: {error}")
        return {}
