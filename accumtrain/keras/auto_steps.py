"""accumulate(model, "auto", ...): the smallest number of micro-batches that fits, found by probes.

A probe makes a few training steps in a child process, which may run out of memory without harm.
"""

from __future__ import annotations

import math
import os
import pickle
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from accumtrain.console import format_bytes, say, table
from accumtrain.errors import ConfigError, OutOfMemoryError
from accumtrain.keras.accumulate_optimizer import is_count
from accumtrain.keras.accumulate_step import SplitTrainStep, split_training
from accumtrain.keras.known import Declared
from accumtrain.keras.run.model_copy import read_model, write_model
from accumtrain.keras.split_batch import Split, count_examples
from accumtrain.keras.split_loss import LossShare
from accumtrain.keras.whole_batch import WholeBatchLoss
from accumtrain.measure.probe import SHARE, find_limit, measure_in_child
from accumtrain.measure.search import largest_that_fits, on_lines
from accumtrain.process import child, environment
from accumtrain.process.machine import free_bytes
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.train.memory import Meter

COLUMNS = ("steps", "micro-batch", "tensors at peak", "resident", "fits")
TASK = "accumtrain.keras.auto_steps:run_step_request"
BATCH = "batch.pickle"
CLEARLY = 1.1  # a size that should take more than this many times the budget is not tried
UPDATES = 3  # from the second on, all buffers are in use


def choose_steps(model: keras.Model, data: Any, batch_size: Any, memory_limit_mb: Any, declared: Declared) -> int:
    """Return the smallest number of micro-batches with which a step of `batch_size` examples fits. Print the trials.

    Raises:
        OutOfMemoryError: not even a micro-batch of 1 fits; the message has what it takes.
        ValueError: an argument is not as `accumulate` says, or the model can't be copied to another process.
    """
    _check(model, batch_size, memory_limit_mb)
    limited = memory_limit_mb is not None
    limit = f"memory_limit_mb={memory_limit_mb}" if limited else f"{format_bytes(free_bytes())} of free memory"
    say(f"steps='auto': looking for the largest micro-batch that fits in {limit}")
    with temporary_folder("probe") as folder:
        write_probe(model, batch_of(data, batch_size), folder)
        trials: dict[int, StepTrial] = {}

        def bytes_of(trial: StepTrial) -> int | None:
            return None if not trial.fits else trial.peak_bytes if limited else trial.rss_bytes

        def used(micro_batch: int) -> int | None:
            known = {size: count for size, trial in trials.items() if (count := bytes_of(trial)) is not None}
            if len(known) > 1 and on_lines(known, micro_batch) > CLEARLY * budget(memory_limit_mb):
                return None  # a probe would only run out of memory
            trial = probe_steps(folder, math.ceil(batch_size / micro_batch), micro_batch, memory_limit_mb, declared)
            trials[micro_batch] = trial
            _tell(trial)
            return bytes_of(trial)

        best = largest_that_fits(micro_batches(batch_size), used, partial(budget, memory_limit_mb))
        table(f"steps for batch_size={batch_size} in {limit}", COLUMNS, [_row(trials[size]) for size in sorted(trials)])
        if best is None:

            def smallest(limit_mb: float | None) -> StepTrial:
                return probe_steps(folder, batch_size, 1, limit_mb, declared)

            peak = smallest(None).peak_bytes if limited else None
            enough = None if peak is None else find_limit(peak, SHARE, lambda limit_mb: smallest(limit_mb).fits)
            more = "" if enough is None else f" raise memory_limit_mb to {enough} at least,"
            raise OutOfMemoryError(
                f"steps='auto': not even a micro-batch of 1 fits in {limit}:{more} wrap layers in "
                "accumtrain.keras.recompute, use an optimizer with less state, or take a smaller model"
            )
    say(f"steps={trials[best].steps}: micro-batch {best}")
    return trials[best].steps


def micro_batches(batch_size: int) -> list[int]:
    """Return the increasing sizes that the largest micro-batch can have. One takes ceil(batch_size / size) steps."""
    return sorted({math.ceil(batch_size / steps) for steps in range(1, batch_size + 1)})


def batch_of(data: Any, batch_size: int) -> Any:
    """Return a batch of `batch_size` examples, which are repeated where there are fewer.

    Args:
        data: as for `fit`: (x, y) or (x, y, sample_weight) of nested arrays [N, ...], or a data set of such batches. Of
            a data set the first batch is taken. Floats of arrays become floatx as in `fit`.

    Returns:
        Nested NumPy arrays [batch_size, ...], as `keras.utils.pack_x_y_sample_weight` makes them.

    Raises:
        ValueError: there are no examples, arrays differ in their number, or a tensor is sparse or ragged.
    """
    floats = None
    if data is None:
        raise ValueError("data=None: probes train on a few examples; give data=(x, y) or the data set that fit gets")
    if isinstance(data, tf.data.Dataset):
        data = next(iter(data), None)
        if data is None:
            raise ValueError("the tf.data.Dataset is empty: give one with a batch")
    elif isinstance(data, keras.utils.PyDataset):
        data = data[0]
    else:
        floats = keras.config.floatx()
    packed = keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(data))
    first = keras.tree.map_structure(partial(_head, size=batch_size, floats=floats), keras.tree.lists_to_tuples(packed))
    examples = count_examples(first)
    counts = {len(tensor) for tensor in keras.tree.flatten(first)}
    if counts != {examples} or not examples:
        numbers = " and ".join(map(str, sorted(counts)))
        raise ValueError(f"data has arrays of {numbers} examples: all have the same number, 1 or more")
    indices = np.arange(batch_size) % examples
    return keras.tree.map_structure(lambda tensor: tensor.numpy()[indices], first)


def _head(values: Any, size: int, floats: str | None) -> Any:
    """Return the first examples of an array [N, ...] as a tensor, or a sparse or ragged one as it is."""
    if isinstance(values, (tf.SparseTensor, tf.RaggedTensor)):
        return values
    if not np.ndim(values):
        raise ValueError(f"data has the value {values!r}: give arrays whose first axis is that of the examples")
    tensor = tf.convert_to_tensor(values[:size])
    return tf.cast(tensor, floats) if floats and tensor.dtype.is_floating else tensor


def _check(model: keras.Model, batch_size: Any, memory_limit_mb: Any) -> None:
    if not model.compiled:
        raise ValueError(f"{model.name} is not compiled: steps='auto' trains it for a few steps; call compile before")
    if not is_count(batch_size):
        raise ValueError(f"batch_size={batch_size!r}: give the number of examples of an update, 1 or more")
    wrong = isinstance(memory_limit_mb, bool) or not isinstance(memory_limit_mb, int | float | np.number | None)
    if wrong or (memory_limit_mb is not None and not 1 <= memory_limit_mb < float("inf")):
        raise ValueError(f"memory_limit_mb={memory_limit_mb!r}: give MiB, 1 or more, or None for the free memory")
    if model.distribute_strategy.num_replicas_in_sync > 1 or tf.config.list_logical_devices("GPU"):
        raise ValueError("steps='auto' measures one replica on the CPU: on GPUs or several replicas give a number")


def _tell(trial: StepTrial) -> None:
    """Print the result of a probe."""
    if trial.peak_bytes is None:
        say("  out of memory")
        return
    more = "" if trial.rss_bytes is None else f", {format_bytes(trial.rss_bytes)} of the whole process"
    say(f"  {format_bytes(trial.peak_bytes)} of tensors{more}: {'fits' if trial.fits else 'does not fit'}")


def _row(trial: StepTrial) -> tuple[str, ...]:
    sizes = ("-" if count is None else format_bytes(count) for count in (trial.peak_bytes, trial.rss_bytes))
    return (str(trial.steps), str(trial.micro_batch), *sizes, "yes" if trial.fits else "no")


# --- probes -----------------------------------------------------------------------------------------------------------


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


def write_probe(model: keras.Model, batch: Any, folder: Path) -> None:
    """Write a compiled model and a batch, as `batch_of` makes it, to an empty folder for probes.

    Raises:
        ValueError: the model can't be copied to another process.
    """
    write_model(model, folder)
    (folder / BATCH).write_bytes(pickle.dumps(batch))


def probe_steps(
    folder: Path, steps: int, micro_batch: int, memory_limit_mb: float | None, declared: Declared
) -> StepTrial:
    """Make a few updates with micro-batches of `steps`, within the limit and the free memory.

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
        "declared": asdict(declared),
        "limit_mb": max(1, int(limit / 2**20)),
        "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
        "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
    }
    try:
        measured = measure_in_child(request, folder)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if measured is None:
        return StepTrial(steps, micro_batch, fits=False)
    added = measured["added_bytes"]
    return StepTrial(steps, micro_batch, added <= left, measured["peak_bytes"], resident + added)


def budget(memory_limit_mb: float | None) -> float:
    """Return the bytes that a step may take: tensors under a limit, else resident memory of this process."""
    return SHARE * (free_bytes() if memory_limit_mb is None else memory_limit_mb * 2**20)


# --- in the child -----------------------------------------------------------------------------------------------------


def run_step_request(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the requested probe. Return peak_bytes of tensors, and added_bytes of resident memory."""
    # TensorFlow reads these with its first tensor; all else is as in the parent, whose training is measured
    os.environ.update(environment.VARIABLES | {environment.CPU_LIMIT: str(request["limit_mb"])})
    tf.config.threading.set_inter_op_parallelism_threads(request["inter_op"])
    tf.config.threading.set_intra_op_parallelism_threads(request["intra_op"])
    doing = folder / child.DOING
    try:
        doing.write_text("reading the model", encoding="utf-8")
        try:
            model = read_model(folder)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        split_training(model, FewMicroBatches(model, request["steps"], Declared(**request["declared"])))
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
    """The step of two micro-batches of each size, with the whole batch at hand: the others take no more memory.

    A loss of the whole batch needs all of them.
    """

    def splits(self, examples: int | tf.Tensor, loss: LossShare | WholeBatchLoss) -> list[Split]:
        every = super().splits(examples, loss)
        if isinstance(loss, WholeBatchLoss):
            return every
        return [replace(split, count=tf.minimum(split.count, 2)) for split in every]
