"""TensorBoard event files of a run, one per split and session, and one of what holds for the whole run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accumtrain.kinds.values import show
from accumtrain.runs.files import disk_errors, make_inner_folder

NOT_SHOWN = ("step", "epoch", "split", "seconds", "examples")  # of a record
WHOLE_RUN = "."  # the folder of hyperparameters, memory and images, beside those of the splits


class Events:
    """Writes metric records as TensorBoard scalars under `directory`/<split>, the rest into `directory`.

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
        self._last: dict[str, int] = {}  # the update that was told last, of each split
        self._told = False  # the hyperparameters

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one event in a single write, before the first one the hyperparameters.

        Raises:
            CheckpointError: it can't be written, for example because the disk is full.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary

        if not self._told:
            self._told = True
            self._write(WHOLE_RUN, self._done, _hparams(self._hyperparameters))
        split, step = record["split"], record["step"]
        if step <= self._last.get(split, -1):  # after a rollback
            self._begin(split, step)
        self._last[split] = step
        values = [Summary.Value(tag=tag, simple_value=record[tag]) for tag in record if tag not in NOT_SHOWN]
        self._write(split, step, Summary(value=values))

    def images(self, tag: str, pictures: Sequence[bytes]) -> None:
        """Appends pictures in the format PNG, for the tab IMAGES. Raises CheckpointError as `log`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{tag}/{number}", image=Summary.Image(encoded_image_string=picture))
            for number, picture in enumerate(pictures)
        ]
        self._write(WHOLE_RUN, self._done, Summary(value=values))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Appends the memory by kind, in MB. Raises CheckpointError as `log`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"memory/{kind} (MB)", simple_value=size / 2**20)
            for kind, size in summary["memory_by_kind"].items()
            if size
        ]
        self._write(WHOLE_RUN, summary["step"], Summary(value=values))

    def close(self) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write(self, split: str, step: int, content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        with disk_errors(self.directory):
            if split not in self._writers:
                make_inner_folder(self.directory)
                self._writers[split] = self._open(self.directory / split)
                # what holds for the whole run is written again
                self._begin(split, self._done if split == WHOLE_RUN else self._done + 1)
            self._writers[split].write(Event(wall_time=time.time(), step=step, summary=content).SerializeToString())

    def _begin(self, split: str, step: int) -> None:
        """Makes TensorBoard leave out what it knows of a split from update `step` on."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START))
        with disk_errors(self.directory):
            self._writers[split].write(start.SerializeToString())

    @staticmethod
    def _open(folder: Path) -> Any:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        make_inner_folder(folder)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        writer = RecordWriter((folder / name).open("wb", buffering=0))
        writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        return writer


def _hparams(values: Mapping[str, Any]) -> Any:
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    return hparams_pb({k: v if isinstance(v, bool | int | float | str) else show(v) for k, v in values.items()})
