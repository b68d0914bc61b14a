"""Accumulation inside the training step of any Keras model: `fit` gets the effective batch, and the step splits it."""

from __future__ import annotations

from typing import Any

import keras

from accumtrain.keras.accumulate_arguments import is_count
from accumtrain.keras.choose_steps import choose_steps
from accumtrain.keras.split_train_function import split_training
from accumtrain.keras.split_train_step import SplitTrainStep


def accumulate(
    model: keras.Model,
    steps: int | str,
    *,
    data: Any = None,
    batch_size: int | None = None,
    memory_limit_mb: float | None = None,
) -> keras.Model:
    """Has `model.fit` compute each batch in `steps` micro-batches, in the memory of one of them.

    The update is that of the whole batch: gradients, losses, metrics and example weights, also of a batch that `steps`
    does not divide. Losses of your own are tried with examples of the first batch: means and sums over the examples are
    exact, all else is refused. Metrics that need the whole batch see all of its outputs at once.

    Batch norm normalises each micro-batch by itself, and its moving statistics become those of the whole batch. Dropout
    is drawn for each micro-batch, and other state that layers change in a call, such as a counter, changes with each.
    The optimizer, and all there is around the step, stay as they are.

    Args:
        model: compiled or not. A `compute_loss` of its own must be a mean or a sum over examples. What is saved or
            cloned is the model without this change: call `accumulate` again.
        steps: number of micro-batches; a batch with fewer examples has as many. `auto` takes the smallest number with
            which a step fits into memory on this CPU: processes with a copy of the model, which must be compiled, try.
        data: for `auto`, what `fit` will get: (x, y), (x, y, sample_weight) or a data set. Some of it is used.
        batch_size: for `auto`, the number of examples in a batch.
        memory_limit_mb: for `auto`, the most that the tensors of a step may take in MiB, weights and optimizer state
            included, the data set and batches made in advance not; None is the memory that is free.

    Returns:
        The same model.

    Raises:
        OutOfMemoryError: with `auto`, not even a micro-batch of 1 fits.
        RuntimeError: with `auto`, a trial failed for another reason than memory.
        ValueError: `steps` is neither `auto` nor a whole number of 1 or more, another argument is not as above, the
            model has a `train_step` of its own, or, with `auto`, can't be copied to another process.
    """
    _check(model, steps, data, batch_size, memory_limit_mb)
    number = choose_steps(model, data, batch_size, memory_limit_mb) if isinstance(steps, str) else steps
    split_training(model, SplitTrainStep(model, int(number)))
    return model


def _check(model: keras.Model, steps: Any, *of_auto: Any) -> None:
    if steps != "auto" and any(value is not None for value in of_auto):
        raise ValueError(f"steps={steps!r}: data, batch_size and memory_limit_mb are for steps='auto'; leave them out")
    if steps != "auto" and not is_count(steps):
        raise ValueError(f"steps={steps!r}: a batch has a whole number of micro-batches, 1 or more, or 'auto'")
    own = vars(model).get("train_step")
    if type(model).train_step is not keras.Model.train_step or not isinstance(own, SplitTrainStep | None):
        raise ValueError(
            f"{type(model).__name__} has a train_step of its own, which can't be split: fit with the micro-batch and "
            "compile(optimizer=Accumulate(optimizer, steps))"
        )
