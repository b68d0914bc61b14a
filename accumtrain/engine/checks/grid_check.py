"""Reports how far the grid of a reversible network moves its gradient, which no other rounding hides in float64."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.engine.checks.derivative_check import InFloat64
from accumtrain.engine.checks.result import Result, relative_difference
from accumtrain.engine.checks.window_checks import WindowOfExamples
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window


def check_grid(window: Window, examples: WindowOfExamples, exact: InFloat64, snap_bits: int) -> Result:
    """Compares the gradient on the grid with that without one, both in float64.

    Args:
        window: of the model on the grid in float64, at update 0, on one device.
        exact: of the model without a grid.
    """
    strategy = tf.distribute.get_strategy()
    Step(window, strategy).accumulate(examples.micro_batches(strategy), examples.steps)
    mean = [buffer.numpy() / float(window.examples.numpy()) for buffer in window.gradients]
    return Result(
        f"gradient on the grid of 2^-{snap_bits} against that without, in float64",
        relative_difference(mean, exact.gradient),
        None,
        "the grid is a part of the model, which is reversed exactly on it, so no bound applies",
    )
