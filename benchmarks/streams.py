"""Gigabytes of generated examples through `accumtrain.fit`, with the resident memory after each epoch.

    .venv/bin/python benchmarks/streams.py [--gigabytes 10] [tf.data | generator | PyDataset]

An example is 256 KB of float32, and its target a number. Nothing is kept on a disk. The last lines show the resident
memory after a tenth of the data, the highest after that, and the megabytes that have been read in each second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import accumtrain

VALUES = 2**16  # of an example
BATCH, STEPS = 64, 8
MEGABYTES = BATCH * VALUES * 4 / 2**20  # of a batch


def batch_at(index: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(index).random((BATCH, VALUES), np.float32)
    return x, x[:, 0] * 2 - 1


class Generated(keras.utils.PyDataset):
    def __init__(self, batches: int):
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return batch_at(index)


def generator(batches: int) -> Any:
    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from map(batch_at, range(batches))

    return generate


def data_set(batches: int) -> tf.data.Dataset:
    def batch(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.random.stateless_uniform([BATCH, VALUES], [index, index])
        return x, x[:, 0] * 2 - 1

    return tf.data.Dataset.range(batches).map(batch)


SOURCES = {"tf.data": data_set, "generator": generator, "PyDataset": Generated}


class Resident(keras.callbacks.Callback):
    """Notes the megabytes of resident memory after each update."""

    def __init__(self) -> None:
        super().__init__()
        self.megabytes: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        self.megabytes.append(pages * 4096 / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", choices=SOURCES, default="tf.data")
    parser.add_argument("--gigabytes", type=float, default=10)
    arguments = parser.parse_args()
    batches = round(1024 * arguments.gigabytes / MEGABYTES)
    model = keras.Sequential([keras.Input((VALUES,)), keras.layers.Dense(1)], name="streamed")
    model.compile(keras.optimizers.SGD(1e-6), "mse")
    resident, started = Resident(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        accumtrain.fit(
            model,
            SOURCES[arguments.source](batches),
            validation_data=batch_at(batches),
            steps=STEPS,
            steps_per_epoch=batches,
            callbacks=[resident],
            run_dir=folder,
        )
    seconds = time.perf_counter() - started
    early, late = resident.megabytes[batches // 10], max(resident.megabytes[batches // 10 :])
    print(f"{arguments.source}: {batches * MEGABYTES / 1024:.1f} GB in {batches} updates")
    print(f"resident MB after a tenth {early:.0f}, highest after that {late:.0f}")
    print(f"{batches * MEGABYTES / seconds:.0f} MB/s")


if __name__ == "__main__":
    main()
