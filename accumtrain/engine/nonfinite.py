"""Where a run became infinite or NaN: which micro-step of a window, and which variables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from accumtrain.engine.finite import all_finite
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window

NAMED = 3  # variables named in a message


def describe_window(window: Window, step: Step, batches: Any) -> str:
    """Says at which micro-step a window stops being finite, and in which sums, or what of the whole window is not.

    The window is empty before and after.

    Args:
        batches: an iterator that begins with the micro-batches of the window.
    """
    for micro_step in range(window.micro_steps):
        step.accumulate(batches)
        loss_finite = bool(all_finite([tf.convert_to_tensor(window.loss)]))
        bad = _nonfinite(window, zip(window.variables_, window.gradients, strict=True))
        if bad or not loss_finite:
            step.drop()
            what = [] if loss_finite else ["the loss"]
            what += [f"the gradients of {_listed(bad)}"] if bad else []
            return f"at micro-step {micro_step + 1} of {window.micro_steps} in {' and '.join(what)}"
    bad = _nonfinite_of_whole(window)
    step.drop()
    return f"in {' and '.join(bad)}" if bad else "though it is when its micro-batches are computed once more"


def _nonfinite_of_whole(window: Window) -> list[str]:
    """What the commit of a window looks at and that is not finite, of what is not known at each micro-step."""
    gradients = [tf.cast(tf.convert_to_tensor(buffer), window.dtype) for buffer in window.gradients]
    values = {
        "the learning rate": [window.optimizer.learning_rate(window.step) * window.schedule(window.step)],
        "the batch statistics": [tf.convert_to_tensor(buffer) for buffer in window.statistics.buffers],
        "the norm of the gradient": [tf.nn.l2_loss(gradient) for gradient in gradients],
    }
    return [name for name, tensors in values.items() if tensors and not bool(all_finite(tensors))]


def describe_state(window: Window) -> str:
    """Names the variables that are infinite or NaN, as a checkpoint does, and says that they are."""
    return f"{_listed(_nonfinite(window, ((each, each) for each in window.written)))} infinite or NaN"


def _nonfinite(window: Window, values: Iterable[tuple[tf.Variable, tf.Variable]]) -> list[str]:
    """The names of the variables, in the first places, whose values, in the second places, are not finite."""
    bad = [variable for variable, value in values if not bool(all_finite([tf.convert_to_tensor(value)]))]
    names = _names(window) if bad else {}
    return [names.get(variable.ref(), variable.name) for variable in bad]


def _names(window: Window) -> dict[Any, str]:
    """The path of each variable from the window, such as model/stages/0/kernel."""
    names: dict[Any, str] = {}
    roots = {"model": window.model, "optimizer": window.optimizer, "ema": window.ema}
    left = deque((name, root) for name, root in roots.items() if root is not None)
    seen: set[int] = set()
    while left:
        path, trackable = left.popleft()
        if id(trackable) in seen:
            continue
        seen.add(id(trackable))
        if isinstance(trackable, tf.Variable):
            names[trackable.ref()] = path
        left.extend((f"{path}/{name}", child) for name, child in tf.train.TrackableView.children(trackable).items())
    return names


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
