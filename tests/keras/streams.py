"""One row of examples as each kind of stream that `accumtrain.fit` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 32


def examples(size: int = 96) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(size, 6)), draw.integers(0, 4, size)


class Batches(keras.utils.PyDataset):
    """Batches of BATCH examples, of which the last may be smaller. `read` lists the indices that were asked for."""

    def __init__(self, size: int = 96, **options: Any) -> None:
        super().__init__(**options)
        self.arrays = examples(size)
        self.read: list[int] = []

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        self.read.append(index)
        return tuple(array[BATCH * index :][:BATCH] for array in self.arrays)


def generator(size: int = 96) -> Iterator[tuple[np.ndarray, ...]]:
    batches = Batches(size)
    for index in range(len(batches)):
        yield batches[index]


def data_set(size: int = 96) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(examples(size))


STREAMS = {
    "PyDataset": (Batches, {}),
    "generator": (lambda size=96: lambda: generator(size), {"steps_per_epoch": 3}),
    "examples": (data_set, {"batch_size": BATCH}),
    "batches": (lambda size=96: data_set(size).batch(BATCH), {}),
    "other batches": (lambda size=96: data_set(size).batch(10), {"batch_size": BATCH}),
}
