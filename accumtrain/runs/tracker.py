"""Where a run's records go beside metrics.jsonl: TensorBoard, and the service that log.tracker names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from accumtrain.config.convert import flat, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import warn
from accumtrain.errors import ConfigError, first_line
from accumtrain.kinds.table import load
from accumtrain.kinds.trackers import NONE, TRACKERS
from accumtrain.kinds.values import is_finite_number
from accumtrain.runs.files import read_json, write_json

NOT_SHOWN = ("step", "split")  # of a record, beside what is no number


class Tracker(Protocol):
    """What takes the records of a run."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Takes a record of metrics.jsonl."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Takes the content of summary.json, at the end of a session; `summary["status"]` says how it ended."""

    def close(self) -> None:
        """Ends it, also after a session that has left no summary."""


class Service:
    """A tracker that is somebody else's program: its first error is told, and the training goes on without it."""

    def __init__(self, name: str, tracker: Tracker):
        self._name, self._tracker = name, tracker
        self._works = True

    def log(self, record: Mapping[str, Any]) -> None:
        self._try(self._tracker.log, record)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._try(self._tracker.finish, summary)

    def close(self) -> None:
        self._try(self._tracker.close)

    def _try(self, call: Callable[..., None], *content: Mapping[str, Any]) -> None:
        if not self._works:
            return
        try:
            call(*content)
        except Exception as error:  # of any kind, as it is not ours
            self._works = False
            said = first_line(error)[:200]
            warn(f"log.tracker={self._name} gets no more records: {said}; metrics.jsonl has all of them")


def open_service(config: Config, folder: Path) -> list[Tracker]:
    """The service that log.tracker names; none or one.

    Raises:
        ConfigError: the service refuses the run, or can't be reached.
    """
    name = config.log.tracker
    if name == NONE:
        return []
    try:
        tracker: Tracker = load(TRACKERS[name].open)(folder.name, folder, dict(flat(to_mapping(config))))
    except Exception as error:  # of any kind, as it is not ours
        raise ConfigError(
            f"log.tracker={name}: {first_line(error)[:200]}; docs/report.md shows how it is set up, log.tracker=none "
            "does without"
        ) from error
    return [Service(name, tracker)]


def numbers(content: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers in nested mappings, by keys joined with "/"."""
    for key, value in content.items():
        name = f"{under}/{key}" if under else str(key)
        if isinstance(value, Mapping):
            yield from numbers(value, name)
        elif is_finite_number(value):
            yield name, value


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, with its split before their names: train/loss."""
    return dict(numbers({key: value for key, value in record.items() if key not in NOT_SHOWN}, record["split"]))


def identifier(folder: Path, service: str, make: Callable[[], str]) -> str:
    """What a service calls this run: made once, and kept in tracker.json so that a continued run goes on there."""
    file = folder / "tracker.json"
    known = read_json(file) if file.exists() else {}
    if service not in known:
        known[service] = make()
        write_json(file, known)
    return str(known[service])
