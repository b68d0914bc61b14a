"""The content of the files of a run: its configuration, summary and metrics. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from accumtrain.config.read import check_stored, check_yaml, from_mapping
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.runs.files import parse_json, read_json, read_text
from accumtrain.runs.names import learned_values
from accumtrain.runs.schema import Record, Summary

HOOK = "hook"  # the split of what hooks log
MOST_METRICS = 2**30  # bytes of a metrics.jsonl
UNREADABLE = (YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # raised by odd YAML


def read_config(file: Path) -> dict[str, Any]:
    """Return the content of a config.yaml.

    Raises:
        CheckpointError: it can't be read, or is not the configuration of a run.
    """
    try:
        text = read_text(file)
        check_yaml(text)
        content = OmegaConf.to_container(OmegaConf.create(text))
        if not isinstance(content, dict):
            raise TypeError("it does not hold a mapping")
        values = {str(key): value for key, value in content.items()}
        check_stored(values)
        learned_values(values)
    except (*UNREADABLE, OmegaConfBaseException, ConfigError) as error:
        raise CheckpointError(f"{file} is damaged: {' '.join(str(error).split())[:200]}") from error
    return values


def check_values(values: Mapping[str, Any], folder: Path) -> None:
    """Check the values of the run in a folder.

    Raises:
        ConfigError: it has a kind that this program does not.
        CheckpointError: a value is none that accumtrain writes.
    """
    file = folder / "config.yaml"
    for group, table in REGISTRIES.items():
        kind = values.get(group, {}).get("kind")
        if kind is not None and kind not in table.names:
            raise ConfigError(
                f"{file} has {group}.kind={kind}, which exists only in the program that trained the run: go on with "
                "the run in that program"
            )
    try:
        from_mapping(values)
    except ConfigError as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error


def read_run_config(folder: Path, **changes: Any) -> Config:
    """Return the configuration of the run in a folder, which may have been moved.

    Args:
        changes: values of the top, such as job, in the place of the run's.

    Raises:
        ConfigError: it has a kind that this program does not.
        CheckpointError: its config.yaml can't be read.
    """
    values = read_config(folder / "config.yaml")
    check_values({group: value for group, value in values.items() if group not in changes}, folder)
    place = folder.resolve() if folder.is_symlink() or not folder.name.strip(".") else folder
    run = {**values["run"], "dir": str(place.parent), "name": place.name}
    return from_mapping({**values, "run": run, **changes})


def read_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary of the run in the folder `path`; None if there is none yet.

    Raises:
        CheckpointError: it is damaged.
    """
    file = path / "summary.json"
    if not file.exists():
        return None
    summary: dict[str, Any] = read_json(file, Summary)
    return summary


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of the run in the folder `path`, in order.

    Raises:
        CheckpointError: the file is damaged.
    """
    file = path / "metrics.jsonl"
    return [record for _, record in parse_lines(read_text(file, MOST_METRICS), file)] if file.exists() else []


def measured(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of updates and evaluations, without those of hooks, which no curve shows."""
    return [record for record in records if record["split"] != HOOK]


def parse_lines(text: str, path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the complete lines of `text`, each with its record. An incomplete last line is left out."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    parsed = []
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_json(line, Record)
        except ValueError as error:
            raise CheckpointError(
                f"{path} line {number} is not a record of a run: {error}; repair or remove that line"
            ) from error
        parsed.append((line, record))
    return parsed


def collect_results(summary: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return loss and metrics of a summary by the title of their split, as the last table of a run has them."""
    best_on = summary["best_on"]
    titles = {"train": "train, last update", best_on: best_on, "best": f"best on {best_on}"}
    if best_on != "test":
        titles["test"] = "test, of the best"
    return {title: summary[split] for split, title in titles.items() if summary.get(split) is not None}
