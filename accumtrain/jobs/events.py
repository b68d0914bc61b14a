"""TensorBoard event files of a run, one writer per split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

SHOWN = ("loss", "accuracy", "learning_rate", "grad_norm", "examples_per_second")


class Events:
    """Context that writes metric records as TensorBoard scalars under `directory`/<split>."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def write(self, record: Mapping[str, Any]) -> None:
        split = record["split"]
        if split not in self._writers:
            self._writers[split] = tf.summary.create_file_writer(str(self.directory / split))
        with self._writers[split].as_default(step=record["step"]):
            for name in SHOWN:
                if name in record:
                    tf.summary.scalar(name, record[name])
