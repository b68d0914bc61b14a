"""Check the memory policies, the reversal, and the fixed-point streams.

Each policy gives the gradient of plain back-propagation, bit for bit. Keras's operations are the exception, because
TensorFlow's graph optimizer rewrites them in each graph differently. A Keras model in two graphs agrees to a rounding
only, with any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from accumtrain.backprop.fixed_point import FixedPoint
from accumtrain.backprop.mode import Mode, example_draws
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Streams
from accumtrain.backprop.segments import Stage
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.measure.verify.float64 import InFloat64
from accumtrain.measure.verify.result import ROUNDING, CheckResult, relative_difference
from accumtrain.measure.verify.window import WindowOfExamples, mean_gradient
from accumtrain.models.config import REVERSE, RevNetConfig

Batch = Mapping[str, tf.Tensor]

KERAS_NOTE = "a Keras model agrees to a rounding: the graph optimizer rewrites its operations in each graph differently"


def check_policies(
    window_for: Callable[[str], Window],
    policies: Iterable[str],
    batch: Batch,
    expected: list[np.ndarray],
    *,
    repeatable: bool,
    bitwise: bool,
    precision: str,
    snap_bits: int | None,
) -> list[CheckResult]:
    """Check one policy after the other, so that only one model is in memory at a time.

    Args:
        window_for: policy -> a window at update 0, on one device.
        expected: the gradient of the batch by plain back-propagation, one array per trainable variable.
        repeatable: plain back-propagation gives the same bits each time.
        bitwise: the model's operations give the same bits in every graph.
        snap_bits: of the streams of a reversible model, else None.
    """
    results = []
    for policy in policies:
        window = window_for(policy)
        step = Step(window)
        step.accumulate(iter(tf.data.Dataset.from_tensors(dict(batch))), 1)
        step.go_back()
        gradient = [buffer.numpy() for buffer in window.gradients]
        if bitwise:
            results.append(_compare_bits(policy, gradient, expected, repeatable, snap_bits))
        else:
            difference = relative_difference(gradient, expected)
            name = f"gradient against plain back-propagation, memory={policy}"
            results.append(CheckResult(name, difference, ROUNDING[precision], KERAS_NOTE))
        if policy == REVERSE and snap_bits is not None:
            results += check_reversal(window.model, batch, snap_bits)
    return results


def _compare_bits(
    policy: str, actual: list[np.ndarray], expected: list[np.ndarray], repeatable: bool, snap_bits: int | None
) -> CheckResult:
    values = sum(gradient.size for gradient in expected)
    differing = sum(int(np.sum(a != e)) for a, e in zip(actual, expected, strict=True))
    note = ""
    if not repeatable:
        note = (
            "no bound can hold: plain back-propagation gives other bits each time on this device, whose kernels add "
            "in no fixed order; TF_DETERMINISTIC_OPS=1 in the environment chooses others"
        )
    elif differing and policy == REVERSE and snap_bits == 0:
        note = (
            "model.snap_bits=0 makes streams of floats: reversal holds to a rounding per unit only, and the gradient "
            f"is off by {relative_difference(actual, expected):.1e} of itself; "
            f"model.snap_bits={RevNetConfig.snap_bits} makes it exact"
        )
    elif differing:
        note = f"{relative_difference(actual, expected):.1e} of the gradient"
    name = f"values of {values:,} that differ from plain back-propagation, memory={policy}"
    return CheckResult(name, float(differing), 0.0 if repeatable else None, note)


def check_reversal(model: Model, batch: Batch, snap_bits: int) -> list[CheckResult]:
    """Run every stage forward, then invert it. Check the reconstruction error and the largest value of a stream."""
    error, largest = (float(value) for value in _invert_stages(model, batch["inputs"]))
    results = [CheckResult("largest reconstruction error of a stream", error, 0.0)]
    if snap_bits:
        limit = FixedPoint(snap_bits).limit(model.trainable_variables[0].dtype)
        results.append(CheckResult(f"largest stream, of {snap_bits} bits behind the point", largest, limit))
    else:
        results.append(CheckResult("largest stream", largest, None, "floats have no such limit (model.snap_bits=0)"))
    return results


@tf.function(autograph=False, reduce_retracing=True)
def _invert_stages(model: Model, inputs: Streams) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the largest reconstruction error and the largest stream of all stages, as scalars."""
    draws = example_draws(tf.constant([0, 0]), tf.constant(0), 1, tf.shape(tf.nest.flatten(inputs)[0])[0])
    x, mode = model.begin(inputs, Mode(training=True, draws=draws))
    errors, sizes = [], []
    for segment in model.segments:
        if isinstance(segment, Stage):
            x, error, size = _invert_stage(segment, x, mode)
            errors.append(error)
            sizes.append(size)
        else:
            x = segment(x, mode)
    return tf.reduce_max(tf.stack(errors)), tf.reduce_max(tf.stack(sizes))


def _invert_stage(stage: Stage, x: Streams, mode: Mode) -> tuple[Streams, tf.Tensor, tf.Tensor]:
    """Return the output of a stage, the largest error of the unit inputs computed from it, and the largest stream."""
    inputs = [x]
    for unit in stage.units:
        inputs.append(unit(inputs[-1], mode))
    read = stage.units[0].numbers.read
    errors = [tf.zeros([], tf.float64)]
    back = inputs[-1]
    for unit, original in zip(reversed(stage.units), reversed(inputs[:-1]), strict=True):
        if unit.invertible:
            back = unit.inverse(back, mode)
            pairs = zip(back, original, strict=True)
            errors += [tf.reduce_max(tf.abs(read(a, tf.float64) - read(b, tf.float64))) for a, b in pairs]
    # the input of a unit that is not invertible may be of floats
    streams = [stream for pair in inputs[0 if stage.units[0].invertible else 1 :] for stream in pair]
    sizes = [tf.reduce_max(tf.abs(read(stream, tf.float64))) for stream in streams]
    return inputs[-1], tf.reduce_max(tf.stack(errors)), tf.reduce_max(tf.stack(sizes))


def check_streams(
    found: Sequence[np.ndarray], window: Window, examples: WindowOfExamples, exact: InFloat64, bits: int
) -> CheckResult:
    """Report how far the gradient with fixed-point streams is from that in float64. The note has that with floats.

    Args:
        found: the mean gradient with streams in fixed point, one array for each trainable variable.
        window: of the same model with streams of floats, in the same precision, at update 0, on one device.
    """
    plain = mean_gradient(window, Step(window), TensorFlowRuntime(), examples.micro_batches(), examples.steps)
    floats = relative_difference(plain, exact.gradient)
    return CheckResult(
        f"gradient with streams of {bits} bits behind the point, against that in float64",
        relative_difference(found, exact.gradient),
        None,
        f"with streams of floats, which can't be reversed to the bit, it is {floats:.1e}",
    )
