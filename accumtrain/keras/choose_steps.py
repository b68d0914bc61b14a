"""accumulate(model, "auto", ...): the smallest number of micro-batches that fits, found by probes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.console import format_bytes, say, table
from accumtrain.errors import OutOfMemoryError
from accumtrain.keras.accumulate_optimizer import is_count
from accumtrain.keras.split_batch import batch_size as examples_in
from accumtrain.keras.step_probe import StepProbe, StepTrial, budget
from accumtrain.planning.probe import SHARE
from accumtrain.planning.search import largest_that_fits
from accumtrain.process.free_memory import free_bytes
from accumtrain.process.temporary_folder import temporary_folder

COLUMNS = ("steps", "micro-batch", "tensors at peak", "resident", "fits")


def choose_steps(model: keras.Model, data: Any, batch_size: Any, memory_limit_mb: Any) -> int:
    """The smallest number of micro-batches with which a step of `batch_size` examples fits. Prints what it tries.

    Raises:
        OutOfMemoryError: not even a micro-batch of 1 fits; the message has what it takes.
        ValueError: an argument is not as `accumulate` says, or the model can't be copied to another process.
    """
    _check(model, batch_size, memory_limit_mb)
    limited = memory_limit_mb is not None
    limit = f"memory_limit_mb={memory_limit_mb}" if limited else f"{format_bytes(free_bytes())} of free memory"
    say(f"steps='auto': looking for the largest micro-batch that fits in {limit}")
    with temporary_folder("probe") as folder:
        probe = StepProbe(model, batch_of(data, batch_size), folder)
        trials: dict[int, StepTrial] = {}

        def used(micro_batch: int) -> int | None:
            trial = probe(math.ceil(batch_size / micro_batch), micro_batch, memory_limit_mb)
            trials[micro_batch] = trial
            return None if not trial.fits else trial.peak_bytes if limited else trial.rss_bytes

        best = largest_that_fits(micro_batches(batch_size), used, partial(budget, memory_limit_mb))
        table(f"steps for batch_size={batch_size} in {limit}", COLUMNS, [_row(trials[size]) for size in sorted(trials)])
        if best is None:
            peak = probe(batch_size, 1, None).peak_bytes if limited else None
            raise OutOfMemoryError(_what_would_help(limit, peak))
    say(f"steps={trials[best].steps}: micro-batch {best}")
    return trials[best].steps


def micro_batches(batch_size: int) -> list[int]:
    """The sizes that the largest micro-batch can have, increasing; a size belongs to ceil(batch_size / size) steps."""
    return sorted({math.ceil(batch_size / steps) for steps in range(1, batch_size + 1)})


def batch_of(data: Any, batch_size: int) -> Any:
    """A batch of `batch_size` examples, which are repeated where there are fewer.

    Args:
        data: what `fit` gets: (x, y) or (x, y, sample_weight) of nested arrays [N, ...], whose floats become floatx as
            in `fit`, or a data set of such batches, of which the first is taken.

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
    examples = examples_in(first)
    counts = {len(tensor) for tensor in keras.tree.flatten(first)}
    if counts != {examples} or not examples:
        numbers = " and ".join(map(str, sorted(counts)))
        raise ValueError(f"data has arrays of {numbers} examples: all have the same number, 1 or more")
    places = np.arange(batch_size) % examples
    return keras.tree.map_structure(lambda tensor: tensor.numpy()[places], first)


def _head(values: Any, size: int, floats: str | None) -> Any:
    """The first examples of an array [N, ...] as a tensor; a sparse or ragged one as it is."""
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


def _row(trial: StepTrial) -> tuple[str, ...]:
    """A trial's line in a table of COLUMNS."""
    sizes = ("-" if count is None else format_bytes(count) for count in (trial.peak_bytes, trial.rss_bytes))
    return (str(trial.steps), str(trial.micro_batch), *sizes, "yes" if trial.fits else "no")


def _what_would_help(limit: str, peak: int | None) -> str:
    """The message if not even a micro-batch of 1 fits, whose tensors take `peak` bytes, if that is known."""
    less = "put layers into accumtrain.keras.recompute, use an optimizer with less state, or take a smaller model"
    more = "" if peak is None else f" raise memory_limit_mb to {math.ceil(peak / SHARE / 2**20)} at least,"
    return f"steps='auto': not even a micro-batch of 1 fits in {limit}:{more} {less}"
