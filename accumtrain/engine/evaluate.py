"""Mean loss and accuracy over a whole split, every example counted once."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import tensorflow as tf

from accumtrain.engine.pace import Pace
from accumtrain.engine.step import Step


def evaluate(
    step: Step, dataset: tf.data.Dataset, batches: int, stop: Callable[[], bool]
) -> dict[str, float] | None:
    """Evaluates the current weights, or their moving average where the run keeps one.

    Args:
        dataset: the split in `batches` batches, distributed by the strategy.
        stop: asked between chunks; True abandons the evaluation.

    Returns:
        loss, accuracy, examples, seconds; None when abandoned.
    """
    started, pace, done = time.perf_counter(), Pace(), 0
    iterator = iter(dataset)
    average = step.window.ema
    with average.in_place() if average is not None else nullcontext():
        step.evaluated()  # forgets an abandoned evaluation
        while done < batches:
            if stop():
                return None
            count = pace.next(batches - done)
            with pace.timed(count):
                step.evaluate(iterator, tf.constant(count))
            done += count
        loss, correct, examples = (float(value) for value in step.evaluated())
    return {
        "loss": loss / examples,
        "accuracy": correct / examples,
        "examples": int(examples),
        "seconds": time.perf_counter() - started,
    }
