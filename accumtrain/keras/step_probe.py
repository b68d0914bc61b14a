"""A training step of a Keras model in a child process, which may run out of memory without harm.

The child runs `answer`.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import psutil
import tensorflow as tf

from accumtrain.console import say
from accumtrain.engine.memory_meter import Meter
from accumtrain.errors import ConfigError, OutOfMemoryError
from accumtrain.keras.accumulate_step import SplitTrainStep, split_training
from accumtrain.keras.model_copy import read_model, write_model
from accumtrain.keras.split_batch import Split
from accumtrain.planning.probe import SHARE, measure_in_child
from accumtrain.process import child, environment
from accumtrain.process.free_memory import free_bytes

TASK = "accumtrain.keras.step_probe:answer"
BATCH = "batch.pickle"
UPDATES = 3  # from the second on, all buffers are in use


@dataclass(frozen=True)
class StepTrial:
    """The result of one probe. `peak_bytes` and `rss_bytes` are None if it ran out of memory.

    Attributes:
        steps: number of micro-batches.
        micro_batch: examples of the largest of them.
        fits: it ran within the limit and the free memory.
        peak_bytes: tensors at the peak: weights, optimizer state, gradients, the batch and activations.
        rss_bytes: resident memory of this process when it trains: what it has now, and what a step adds.
    """

    steps: int
    micro_batch: int
    fits: bool
    peak_bytes: int | None = None
    rss_bytes: int | None = None


class StepProbe:
    """Probes of one model with one batch.

    Args:
        model: compiled.
        batch: nested arrays [batch_size, ...], as `keras.utils.pack_x_y_sample_weight` makes them.
        folder: an empty folder, to which both are written for the children.

    Raises:
        ValueError: the model can't be copied to another process.
    """

    def __init__(self, model: keras.Model, batch: Any, folder: Path) -> None:
        self._folder = folder
        write_model(model, folder)
        (folder / BATCH).write_bytes(pickle.dumps(batch))

    def __call__(self, steps: int, micro_batch: int, memory_limit_mb: float | None) -> StepTrial:
        """Makes a few updates with micro-batches of `steps`, within the limit and the free memory.

        Raises:
            ValueError: the model can't be made again in another process.
            KeyboardInterrupt: a signal stopped the child.
            RuntimeError: training fails for another reason than memory; the end of its stderr is in the message.
        """
        say(f"probing micro-batch {micro_batch}: steps={steps}")
        resident = psutil.Process().memory_info().rss
        left = budget(None) - resident
        limit = left if memory_limit_mb is None else budget(memory_limit_mb)
        request = {
            child.TASK: TASK,
            "steps": steps,
            "limit_mb": max(1, int(limit / 2**20)),
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
        }
        try:
            measured = measure_in_child(request, self._folder)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if measured is None:
            return StepTrial(steps, micro_batch, fits=False)
        added = measured["added_bytes"]
        return StepTrial(steps, micro_batch, added <= left, measured["peak_bytes"], resident + added)


def budget(memory_limit_mb: float | None) -> float:
    """Bytes that a step may take: tensors under a limit, else resident memory of this process."""
    return SHARE * (free_bytes() if memory_limit_mb is None else memory_limit_mb * 2**20)


# --- in the child -----------------------------------------------------------------------------------------------------


def answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Makes the requested probe. Returns peak_bytes of tensors, and added_bytes of resident memory."""
    # TensorFlow reads them with its first tensor; all else is as in the parent, whose training is to be measured
    os.environ.update(environment.VARIABLES | {environment.CPU_LIMIT: str(request["limit_mb"])})
    tf.config.threading.set_inter_op_parallelism_threads(request["inter_op"])
    tf.config.threading.set_intra_op_parallelism_threads(request["intra_op"])
    doing = folder / child.DOING
    try:
        doing.write_text("reading the model", encoding="utf-8")
        model = _model(folder)
        split_training(model, FewMicroBatches(model, request["steps"]))
        batch = tf.data.Dataset.from_tensor_slices(pickle.loads((folder / BATCH).read_bytes()))
        meter, process = Meter(), psutil.Process()
        before = process.memory_info().rss
        meter.start()
        doing.write_text("compiling, then training", encoding="utf-8")
        # as in fit with arrays, the size of a batch is not known before
        model.fit(batch.batch(int(batch.cardinality())).repeat(UPDATES), verbose=0)
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise OutOfMemoryError(str(error)) from error
    measured = meter.read()
    return {
        "peak_bytes": measured["tensor_peak_bytes"],
        "added_bytes": max(0, measured["rss_peak_bytes"] - before),
    }


class FewMicroBatches(SplitTrainStep):
    """The step of two micro-batches of each size, with the whole batch at hand: the others take no more memory."""

    def splits(self, examples: int | tf.Tensor) -> list[Split]:
        return [replace(split, count=tf.minimum(split.count, 2)) for split in super().splits(examples)]


def _model(folder: Path) -> keras.Model:
    try:
        return read_model(folder)
    except ValueError as error:
        raise ConfigError(str(error)) from error
