"""The content of the files of a run: its configuration, summary and metrics. No TensorFlow here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from accumtrain.config.read import check_yaml, from_mapping
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import is_finite_number
from accumtrain.runs.files import Form, has_form, is_count, is_text, read_json, read_text
from accumtrain.runs.names import learned_values

HOOK = "hook"  # the split of what hooks log
UNREADABLE = (YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # raised by odd YAML
NUMBERS = {str: (is_finite_number, None)}
SUMMARY: dict[str, Form] = {  # the form of a summary.json
    "status": is_text,
    "step": is_count,
    "epoch": (is_finite_number, None),
    **dict.fromkeys(("skipped_windows", "skipped_examples"), is_count),
    **dict.fromkeys(("train", "val", "test", "best"), (NUMBERS, None)),
    "best_on": ("val", "test").__contains__,
    "best_by": ({"metric": is_text, "higher_is_better": (True, False).__contains__}, None),
    "seconds": is_finite_number,
    "examples_per_second": (is_finite_number, None),
    "memory": {"peak_by_compiler": (True, False).__contains__, **NUMBERS},
    "memory_by_kind": NUMBERS,
    "provenance": {
        "versions": {str: (is_text, None)},
        "git": ({"commit": is_text}, None),
        "command": [is_text],
        "cpu": {"model": (is_text, None)},
        **dict.fromkeys(("started", "host", "platform", "device"), is_text),
    },
}
RECORD = {  # the form of a line of metrics.jsonl
    "step": is_count,
    "split": is_text,
    "seconds": is_finite_number,
    str: (is_finite_number, None),
}


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
        learned_values(values)
    except (*UNREADABLE, OmegaConfBaseException) as error:
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
    return read_json(file, SUMMARY) if file.exists() else None


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of the run in the folder `path`, in order.

    Raises:
        CheckpointError: the file is damaged.
    """
    file = path / "metrics.jsonl"
    return [record for _, record in parse_lines(read_text(file), file)] if file.exists() else []


def measured(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of updates and evaluations, without those of hooks, which no curve shows."""
    return [record for record in records if record["split"] != HOOK]


def parse_lines(text: str, path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the complete lines of `text`, each with its record. An incomplete last line is left out."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    parsed = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not has_form(record, RECORD) or not {"step", "split", "seconds"} <= record.keys():
                raise ValueError("it is not one of a run")
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} line {number} is not a record of a run: repair or remove that line"
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
