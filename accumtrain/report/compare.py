"""Runs side by side, as their files show them: read, ranked, and the keys in which their configurations differ.

Runs are ranked against each other only if the same metric was measured on the same data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from accumtrain.config.jobs import JOBS, cell
from accumtrain.config.read import flatten_keys
from accumtrain.console import format_bytes, warn
from accumtrain.data.config import SOURCES
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import format_value, is_finite_number, value_at
from accumtrain.runs.contents import measured, read_config, read_records, read_summary
from accumtrain.runs.names import CLASSES, EXCLUDED_KEYS

MEMORY = ("activations", "workspace", "resident")  # of a run, see ComparedRun.memory
SPLITS = ("train", "val", "test")
NAMING = ("title", "name", "kind")  # last parts of the keys that say the most about their group, best first


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
        """The bytes that differ most between runs, by kind: tensors at the peak beyond those that are always there.

        Activations hold the workspace too, where it was not measured.
        """
        peak, static = (self.number(f"memory.tensor_{kind}_bytes") for kind in ("peak", "static"))
        workspace = self.number("memory.workspace_bytes")
        activations = None if peak is None or static is None else peak - static - (workspace or 0)
        return dict(zip(MEMORY, (activations, workspace, self.number("memory.rss_peak_bytes")), strict=True))

    @property
    def ranked_by(self) -> str:
        """The dotted key of the summary that ranks the run first, such as best.accuracy."""
        return JOBS["train"].ranking_of(self.summary)[0][0]

    @property
    def data(self) -> str:
        """The name of the data that the run was trained on; "-" without a configuration."""
        kind = self.config.get("data.kind", "-")
        if kind not in SOURCES.names:
            return str(kind)
        keys = SOURCES[kind].config
        values = {
            key.name: self.config[f"data.{key.name}"] for key in fields(keys) if f"data.{key.name}" in self.config
        }
        with suppress(TypeError):  # a key is missing, or has a value of another type
            return str(keys(**values).label)
        return str(kind)

    @property
    def measured_on(self) -> dict[str, Any]:
        """The facts of the data that runs must have in common: those of the split that chooses the best state.

        They are those of all splits where the split has no facts of its own but its size.
        """
        facts, split = self.summary.get("data"), self.summary.get("best_on")
        if not isinstance(facts, dict):
            return {}
        of_others = tuple(f"data.{name}." for name in SPLITS if name != split)
        kept = {key: value for key, value in facts.items() if not key.startswith(of_others)}
        return kept if kept.keys() - {f"data.{split}.examples", CLASSES} else facts

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
        of_split = f" on {size:,} {split} examples" if is_finite_number(size) else f" on {split}" if split else ""
        return f"{first.data}, by {metric}{of_split}"


@dataclass(frozen=True)
class DifferingKey:
    """A key whose values differ between runs.

    Attributes:
        values: as a user writes them, one of each run. "-" where the run has no such key.
        along: keys of the same group that differ between the same runs.
    """

    key: str
    values: tuple[str, ...]
    along: tuple[str, ...] = ()


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


def group_runs(runs: Sequence[ComparedRun]) -> list[RankedRuns]:
    """Return the runs in groups that can be ranked, the largest group first."""
    groups: dict[tuple[str, ...], list[ComparedRun]] = {}
    for run in runs:
        measured_on = json.dumps(run.measured_on, sort_keys=True)
        groups.setdefault((run.data, str(run.summary.get("best_on")), run.ranked_by, measured_on), []).append(run)
    ranked = [RankedRuns(sorted(group, key=lambda run: JOBS["train"].rank(run.summary))) for group in groups.values()]
    return sorted(ranked, key=lambda group: (-len(group.runs), group.title))


def find_differing_keys(runs: Sequence[ComparedRun]) -> list[DifferingKey]:
    """Return the keys in which the configurations differ. Of keys of a group that differ alike, the first leads.

    A run without config.yaml is left out of the comparison.
    """
    known = [run.config for run in runs if run.config]
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for key in dict.fromkeys(key for config in known for key in config):
        shown = [_format_cell(config, key) for config in known]
        if key not in EXCLUDED_KEYS and len(set(shown)) > 1:
            alike = tuple(map(shown.index, shown))  # 0, 1, 0: the first and the third run have the same value
            groups.setdefault((key.partition(".")[0], alike), []).append(key)
    return [
        DifferingKey(first, tuple(_format_cell(run.config, first) for run in runs), tuple(along))
        for first, *along in (sorted(keys, key=_says_more) for keys in groups.values())
    ]


def list_results(runs: Sequence[ComparedRun]) -> dict[str, list[tuple[str, Any]]]:
    """Return the columns of results: by title the text of each run, and the value to sort by."""
    columns: dict[str, list[tuple[str, Any]]] = {"status": [(run.summary["status"],) * 2 for run in runs]}
    if len(group_runs(runs)) > 1:
        columns["data"] = [(run.data,) * 2 for run in runs]
    for title, (key, form) in JOBS["train"].columns_of(run.summary for run in runs).items():
        columns[title] = [(cell(run.number(key), form), run.number(key)) for run in runs]
    columns["batch"] = [(run.batch, run.number("batch_size")) for run in runs]
    for title in MEMORY:
        columns[title] = [(cell(run.memory[title], format_bytes), run.memory[title]) for run in runs]
    return columns


def _says_more(key: str) -> int:
    last = key.rpartition(".")[2]
    return NAMING.index(last) if last in NAMING else len(NAMING)


def _format_cell(config: Mapping[str, Any], key: str) -> str:
    return format_value(config[key]) if key in config else "-"


def _read_summary(path: Path) -> dict[str, Any]:
    summary = read_summary(path)
    if summary is None:
        raise ConfigError(f"report.runs: {path} holds no run with a summary.json; train it first")
    if not isinstance(summary.get("status"), str) or not is_finite_number(summary.get("step")):
        raise CheckpointError(
            f"{path / 'summary.json'} is not the summary of a training; run the training command again, which makes a "
            "new one"
        )
    return summary


def _read_values(path: Path) -> dict[str, Any]:
    file = path / "config.yaml"
    try:
        return dict(flatten_keys(read_config(file))) if file.exists() else {}
    except CheckpointError as error:
        warn(f"{path.name} is compared without its configuration: {error}")
        return {}
