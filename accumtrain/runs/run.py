"""A run on disk: its lock, config.yaml, inputs.json and metrics.jsonl. summary.json is written by dispatch.py.

Files are replaced as a whole or not at all, and metrics.jsonl grows line by line. A last line that a kill has cut off
is dropped when the run goes on. So a run can be stopped at any moment and continued. No TensorFlow here.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import OmegaConf

from accumtrain.config.read import to_mapping
from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError, ConfigError, DataError
from accumtrain.runs.checkpoint_store import newest_manifest
from accumtrain.runs.contents import MOST_METRICS, parse_lines, read_records, read_summary
from accumtrain.runs.files import (
    disk_errors,
    list_folder,
    open_regular,
    read_text,
    remove_unfinished,
    to_json_value,
    write_atomic,
    write_json,
)
from accumtrain.runs.lock import Lock
from accumtrain.runs.names import (
    ADDED,
    CHECKPOINTS,
    QUARANTINE,
    differences,
    fits_state,
    folder_of,
    has_same_class_count,
    learned_values,
    make_folder,
)
from accumtrain.runs.schema import Manifest

INPUTS_FILE = "inputs.json"  # in the run's folder
REMEDY = "run its training command again, which makes a new one"
FORCE = "force"  # value of run.resume


class Run:
    """The folder of a run. One process locks it while the context is open; the constructor touches no file.

    Raises (on entering):
        ConfigError: the folder can't be made, another process trains there, or it holds a run that this
            configuration does not continue.
    """

    def __init__(self, config: Config):
        self.config = config
        self.path = folder_of(config)
        self.checkpoints = self.path / CHECKPOINTS
        self._metrics = self.path / "metrics.jsonl"
        self._lock = Lock(self.path)

    def __enter__(self) -> Run:
        make_folder(self.path)
        self._lock.__enter__()
        try:
            remove_unfinished(self.path)
            self.check_continues()
        except BaseException:
            self._lock.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def save_config(self, config: Config) -> None:
        write_atomic(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(to_mapping(config))))

    def save_inputs(self, content: Mapping[str, Any]) -> None:
        write_json(self.path / INPUTS_FILE, content)

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl. Numbers may be NumPy scalars; non-finite ones become null.

        Raises:
            CheckpointError: it can't be written, or the folder was moved or removed.
        """
        self._lock.check()
        line = json.dumps(to_json_value(record), allow_nan=False).encode() + b"\n"
        with disk_errors(self._metrics):
            file = open_regular(self._metrics, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                size = os.fstat(file).st_size
                try:
                    if os.write(file, line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:
                    os.ftruncate(file, size)
                    raise
            finally:
                os.close(file)

    def truncate(self, step: int) -> None:
        """Delete the records after update `step`, and a last line that is incomplete."""
        if not self._metrics.exists():
            return
        text = read_text(self._metrics, MOST_METRICS)
        kept = "".join(line + "\n" for line, record in parse_lines(text, self._metrics) if record["step"] <= step)
        if kept != text:
            write_atomic(self._metrics, kept)

    def records(self) -> list[dict[str, Any]]:
        """Return all records of metrics.jsonl, in order."""
        return read_records(self.path)

    def make_manifest_check(self, facts: Mapping[str, Any]) -> Callable[[Manifest], None]:
        """Return a function that refuses the manifest of a checkpoint that this run does not continue.

        Args:
            facts: `data`, the fingerprint of the source of this configuration, `inputs`, its inputs in short, and
                `weights`, the checksum of its first weights.
        """

        def check(manifest: Manifest) -> None:
            if self.config.run.resume == FORCE:
                return
            self._check_learned(manifest)
            if changed := differences(manifest["weights"], facts["weights"]):
                raise CheckpointError(
                    f"{self.path} began with other weights: {changed} (null: none, else a checksum); give those it "
                    "began with, choose another run.name, or run.resume=force to continue it all the same"
                )
            data = manifest["data"], facts["data"]
            inputs = manifest.get("inputs", {}), facts["inputs"]
            if changed := differences(*data) or differences(*inputs):
                raise DataError(
                    f"the data is not what {self.path} was trained on: {changed}; put it back as it was, or choose "
                    f"another run.name{_or_force('go on with what is there now', has_same_class_count(*data))}"
                )

        return check

    def check_not_begun(self) -> None:
        """Raise CheckpointError if the folder holds files of a run whose checkpoints are lost."""
        traces = {
            "the metrics": self._has_metrics(),
            "damaged checkpoints": any(path.name != "step-0" for path in list_folder(self.checkpoints / QUARANTINE)),
            "the summary": bool((read_summary(self.path) or {"step": 0})["step"]),
        }
        if left := next((name for name, found in traces.items() if found), None):
            raise CheckpointError(
                f"{self.path} holds {left} of a run, but no checkpoint; put the checkpoints back, or start anew "
                "under another run.name"
            )

    def check_continues(self) -> None:
        """Raise ConfigError if the folder holds a run that this configuration does not continue."""
        if not (list_folder(self.checkpoints) or self._has_metrics()):
            return
        if self.config.run.resume is False:
            raise ConfigError(
                f"run.resume=false, but {self.path} holds a trained run; choose another run.name, or leave run.resume "
                "out to continue it"
            )
        newest = newest_manifest(self.checkpoints)
        if newest is not None and self.config.run.resume != FORCE:
            self._check_learned(newest)  # before anything slow is done

    def _check_learned(self, manifest: Manifest) -> None:
        learned = {**ADDED, **manifest["learned"]}
        if changed := differences(learned, learned_values(self.config)):
            raise ConfigError(
                f"{self.path} holds a run that learns something else: {changed}; choose another run.name, or give "
                "the values there" + _or_force("continue it with these", fits_state(learned, self.config))
            )

    def _has_metrics(self) -> bool:
        return self._metrics.exists() and self._metrics.stat().st_size > 0


class ReadOnlyRun(Run):
    """The folder of a run that another process has locked. This process reads it and writes nothing."""

    _last_step = 0

    def __enter__(self) -> Run:
        return self

    def save_config(self, config: Config) -> None:
        pass

    def save_inputs(self, content: Mapping[str, Any]) -> None:
        pass

    def log(self, record: Mapping[str, Any]) -> None:
        pass

    def truncate(self, step: int) -> None:
        """Hide the records after update `step`, which the process with the lock may not have deleted yet."""
        self._last_step = step

    def records(self) -> list[dict[str, Any]]:
        return [record for record in super().records() if record["step"] <= self._last_step]


def _or_force(effect: str, fits: bool) -> str:
    """Return the remedy run.resume=force, where the state of the run fits."""
    return f", or run.resume=force to {effect}" if fits else ""
