"""Receivers of a run's records beside metrics.jsonl: TensorBoard, also of profiles, and the service of log.tracker."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from accumtrain.config.read import flatten_keys, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import warn
from accumtrain.errors import ConfigError, first_line
from accumtrain.fields import format_value, is_finite_number
from accumtrain.registry import load
from accumtrain.runs.files import disk_errors, make_inner_folder, read_json, write_json
from accumtrain.runs.schema import TrackerIds
from accumtrain.train.config import NONE, TRACKERS

# ---- TensorBoard: event files, one per split and session, and one of what holds for the whole run --------------------

NOT_IN_TENSORBOARD = ("step", "epoch", "split", "seconds", "examples")  # of a record
WHOLE_RUN = "."  # the folder of hyperparameters, memory and images, beside those of the splits


class TensorBoardTracker:
    """Metric records as TensorBoard scalars under `directory`/<split>, and the rest in `directory`.

    A run that goes on from a checkpoint makes updates again. TensorBoard leaves out what was written of them before: a
    mark says from which update on.

    It uses TensorBoard's own record writer, which takes a twentieth of the 1.5 ms that tf.summary takes for a record.
    The import takes 0.3 s and is done at the first record, so that the first update comes sooner.

    Args:
        hyperparameters: by dotted key, for the tab HPARAMS.
        done: updates that were done before this session.
    """

    def __init__(self, directory: Path, hyperparameters: Mapping[str, Any], done: int = 0):
        self.directory, self._hyperparameters, self._done = directory, hyperparameters, done
        self._writers: dict[str, Any] = {}
        self._last: dict[str, dict[str, int]] = {}  # the update that was told last, by split and tag
        self._told = False  # the hyperparameters

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one event in a single write, before the first one the hyperparameters.

        Raises:
            CheckpointError: it can't be written, for example because the disk is full.
        """
        if not self._told:
            self._told = True
            self._write(WHOLE_RUN, self._done, _hparams(self._hyperparameters))
        split, step = record["split"], record["step"]
        tags = [tag for tag in record if tag not in NOT_IN_TENSORBOARD]
        last = self._last.setdefault(split, {})
        if any(step <= last.get(tag, -1) for tag in tags):  # after a rollback; hooks may log others after one update
            self._begin(split, step)
            last.clear()
        last.update(dict.fromkeys(tags, step))
        self._write(split, step, {"value": [{"tag": tag, "simple_value": record[tag]} for tag in tags]})

    def images(self, tag: str, pictures: Sequence[bytes]) -> None:
        """Append pictures in the format PNG, for the tab IMAGES. Raise CheckpointError as `log`."""
        values = [
            {"tag": f"{tag}/{number}", "image": {"encoded_image_string": picture}}
            for number, picture in enumerate(pictures)
        ]
        self._write(WHOLE_RUN, self._done, {"value": values})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Append the memory by kind, in MB. Raise CheckpointError as `log`."""
        values = [
            {"tag": f"memory/{kind} (MB)", "simple_value": size / 2**20}
            for kind, size in summary["memory_by_kind"].items()
            if size
        ]
        self._write(WHOLE_RUN, summary["step"], {"value": values})

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write(self, split: str, step: int, summary: Any) -> None:
        """Append a summary: a message of TensorBoard's, or its fields by name."""
        with disk_errors(self.directory):
            if split not in self._writers:
                make_inner_folder(self.directory)
                self._writers[split] = self._open(self.directory / split)
                # values of the whole run are written again
                self._begin(split, self._done if split == WHOLE_RUN else self._done + 1)
            self._writers[split].write(_event(step=step, summary=summary))

    def _begin(self, split: str, step: int) -> None:
        """Make TensorBoard leave out what it knows of a split from update `step` on."""
        with disk_errors(self.directory):
            self._writers[split].write(_event(step=step, session_log={"status": "START"}))

    @staticmethod
    def _open(folder: Path) -> Any:
        from tensorboard.summary.writer.record_writer import RecordWriter

        make_inner_folder(folder)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        writer = RecordWriter((folder / name).open("wb", buffering=0))
        writer.write(_event(file_version="brain.Event:2"))
        return writer


def _event(**fields: Any) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=time.time(), **fields).SerializeToString()


def _hparams(values: Mapping[str, Any]) -> Any:
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    return hparams_pb({k: v if isinstance(v, bool | int | float | str) else format_value(v) for k, v in values.items()})


# ---- a profile, for TensorBoard's tab PROFILE ------------------------------------------------------------------------

LEFT_OUT = 3  # updates of a session that trace and compile
PLUGIN = "tensorboard-plugin-profile"


class Profile:
    """A trace of some updates of a session, which TensorFlow's profiler writes. A failure is told and ends nothing.

    Args:
        folder: the folder that TensorBoard reads, beside those of the splits.
        updates: how many updates are profiled, after the first of the session; None for none.
        done: updates that were done before this session.
        tell: prints a line.
    """

    def __init__(self, folder: Path, updates: int | None, done: int, tell: Callable[[str], None]):
        self._folder, self._updates, self._tell = folder, updates, tell
        self._first, self._done = done + LEFT_OUT, done
        self.runs, self._ended = False, updates is None

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        if self.runs:
            self._end()

    def next(self, done: int) -> int | None:
        """Return the update after which the profile begins; None if it has begun."""
        return None if self._ended or self.runs else max(self._first, done + 1)

    def turn(self, done: int) -> None:
        """Begin or end the profile, if that is due after update `done`."""
        self._done = done
        if self.runs and done >= self._first + (self._updates or 0):
            self._end()
        elif not (self.runs or self._ended) and done >= self._first:
            self._begin()

    def close(self, done: int) -> None:
        """End the profile after the last update, `done`, of the session."""
        self._done = done
        if self.runs:
            self._end()
        elif not self._ended:
            self._ended = True
            warn(
                f"debug.profile={self._updates}: no update was profiled, as the first {LEFT_OUT} of a session are left "
                f"out and this one has made no more; make it longer by train.steps or train.epochs"
            )

    @contextmanager
    def update(self) -> Iterator[None]:
        """Mark an update in the profile."""
        if not self.runs:
            yield
            return
        with tf.profiler.experimental.Trace("update", step_num=self._done + 1, _r=1):
            yield

    def _begin(self) -> None:
        try:
            make_inner_folder(self._folder)
            tf.profiler.experimental.start(str(self._folder))
            self.runs, self._first = True, self._done
        except tf.errors.OpError as error:
            self._give_up(error)

    def _end(self) -> None:
        self.runs, self._ended = False, True
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            self._give_up(error)
            return
        first, last = self._first + 1, self._done
        profiled = f"update {last} is" if first == last else f"updates {first} to {last} are"
        self._tell(
            f"{profiled} profiled in {self._folder}/plugins/profile, and slower for that: tensorboard --logdir "
            f"{self._folder} shows them in PROFILE (pip install {PLUGIN})"
        )

    def _give_up(self, error: Exception) -> None:
        self._ended = True
        warn(f"debug.profile={self._updates}: there is no profile: {first_line(error)[:200]}; the training goes on")


# ---- services --------------------------------------------------------------------------------------------------------

NOT_SHOWN = ("step", "split")  # of a record, beside what is no number


class Tracker(Protocol):
    """The interface of a receiver of a run's records."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Take a record of metrics.jsonl."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Take the content of summary.json, at the end of a session; `summary["status"]` says how it ended."""

    def close(self) -> None:
        """End it, also after a session that has left no summary."""


class GuardedTracker:
    """A tracker that is another's program: its first error is printed, and the training goes on without it."""

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
    """Return the service that log.tracker names; none or one.

    Raises:
        ConfigError: the service refuses the run, or can't be reached.
    """
    name = config.log.tracker
    if name == NONE:
        return []
    try:
        tracker: Tracker = load(TRACKERS[name].open)(folder.name, folder, dict(flatten_keys(to_mapping(config))))
    except Exception as error:  # of any kind, as it is not ours
        raise ConfigError(
            f"log.tracker={name}: {first_line(error)[:200]}; docs/report.md shows how it is set up, log.tracker=none "
            "does without"
        ) from error
    return [GuardedTracker(name, tracker)]


def numbers(content: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers in nested mappings, by keys joined with "/"."""
    for key, value in content.items():
        name = f"{under}/{key}" if under else str(key)
        if isinstance(value, Mapping):
            yield from numbers(value, name)
        elif is_finite_number(value):
            yield name, value


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record, with its split before their names: train/loss."""
    return dict(numbers({key: value for key, value in record.items() if key not in NOT_SHOWN}, record["split"]))


def identifier(folder: Path, service: str, make: Callable[[], str]) -> str:
    """Return the service's identifier of this run. It is kept in tracker.json, so a continued run goes on there.

    Args:
        make: makes the identifier.
    """
    file = folder / "tracker.json"
    known: dict[str, str] = read_json(file, TrackerIds) if file.exists() else {}
    if service not in known:
        known[service] = make()
        write_json(file, known)
    return known[service]


# ---- MLflow, where MLFLOW_TRACKING_URI says --------------------------------------------------------------------------

EXPERIMENT = "accumtrain"  # unless MLFLOW_EXPERIMENT_NAME says another
STATUS = {"completed": "FINISHED", "preempted": "KILLED"}  # by that of a summary
FAILED = "FAILED"
LONGEST = 6000  # characters of a parameter
EPOCH = "/epoch"  # ends the name of a metric that each record has, after its split


class MlflowTracker:
    """An MLflow run. A continued run of accumtrain continues it, and records that it has already stay."""

    def __init__(self, name: str, folder: Path, hyperparameters: Mapping[str, Any]):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        self._run = identifier(folder, "mlflow", lambda: self._create(name))
        self._status = FAILED
        self._client.update_run(self._run, status="RUNNING")
        known = self._client.get_run(self._run).data
        # by split: a killed run makes updates again whose records have been sent
        self._told = {key.removesuffix(EPOCH): self._last(key) for key in known.metrics if key.endswith(EPOCH)}
        # parameters can't be changed
        new = {key: format_value(value)[:LONGEST] for key, value in hyperparameters.items() if key not in known.params}
        self._client.log_batch(self._run, params=[Param(key, value) for key, value in new.items()])

    def _create(self, name: str) -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(title)
        number = self._client.create_experiment(title) if experiment is None else experiment.experiment_id
        return str(self._client.create_run(number, run_name=name).info.run_id)

    def _last(self, key: str) -> int:
        """Return the last step of a metric."""
        return max(int(record.step) for record in self._client.get_metric_history(self._run, key))

    def log(self, record: Mapping[str, Any]) -> None:
        if record["step"] > self._told.get(record["split"], -1):
            self._log(metrics(record), record["step"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._log(dict(numbers(summary, "summary")), summary["step"])
        self._status = STATUS.get(summary["status"], FAILED)

    def close(self) -> None:
        self._client.set_terminated(self._run, status=self._status)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(
            self._run, metrics=[self._metric(key, value, now, step) for key, value in values.items()]
        )


# ---- Weights & Biases, as its environment variables say (WANDB_MODE, ...) --------------------------------------------

PROJECT = "accumtrain"  # unless WANDB_PROJECT says another


class WandbTracker:
    """A run of Weights & Biases. A continued run of accumtrain continues it, and records that it has already stay."""

    def __init__(self, name: str, folder: Path, hyperparameters: Mapping[str, Any]):
        import wandb

        number = identifier(folder, "wandb", lambda: uuid.uuid4().hex[:12])
        self._completed = False
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=number,
            resume="allow",
            dir=folder,
            config=dict(hyperparameters),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, record: Mapping[str, Any]) -> None:
        self._run.log(metrics(record), step=record["step"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(numbers(summary, "summary")))
        self._completed = summary["status"] == "completed"

    def close(self) -> None:
        self._run.finish(exit_code=0 if self._completed else 1)
