"""Reports what the fixed-point streams of a reversible network make of its gradient, beside streams of floats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from accumtrain.engine.checks.derivative_check import InFloat64
from accumtrain.engine.checks.result import Result, relative_difference
from accumtrain.engine.checks.window_checks import WindowOfExamples
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window


def check_streams(
    found: Sequence[np.ndarray], window: Window, examples: WindowOfExamples, exact: InFloat64, bits: int
) -> Result:
    """Compares the gradient with streams in fixed point, and that with streams of floats, with the one in float64.

    Args:
        found: the mean gradient with streams in fixed point, one array for each trainable variable.
        window: of the same model with streams of floats, in the same precision, at update 0, on one device.
        bits: behind the point.
    """
    strategy = tf.distribute.get_strategy()
    Step(window, strategy).accumulate(examples.micro_batches(strategy), examples.steps)
    plain = [buffer.numpy() / float(window.examples.numpy()) for buffer in window.gradients]
    floats = relative_difference(plain, exact.gradient)
    return Result(
        f"gradient with streams of {bits} bits behind the point, against that in float64",
        relative_difference(found, exact.gradient),
        None,
        f"with streams of floats, which can't be reversed to the bit, it is {floats:.1e}",
    )
