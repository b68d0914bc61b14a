"""The output of a module together with its pullback: the function that back-propagates a gradient through it.

A module with a method `pullback(x, mode)` decides in which order its gradients are computed and what is kept for them.
For all other modules tf.GradientTape decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from accumtrain.backprop.mode import Mode

Streams = Any  # one tensor, or the tuple of two streams that a reversible stage carries
Module = Callable[[Streams, Mode], Streams]
Gradients = list[tuple[tf.Variable, tf.Tensor | None]]  # None where the output does not depend on the variable
Pullback = Callable[[Streams], tuple[Streams, Gradients]]  # from the output's gradient


def pullback(module: Module | None, x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
    """Return y = module(x, mode), and the function from the gradient of y to those of x and the trained variables.

    `module` None is the identity.
    """
    if module is None:
        return x, lambda d_y: (d_y, [])
    own = getattr(module, "pullback", None)
    return tape_pullback(module, x, mode) if own is None else own(x, mode)


def tape_pullback(module: Module, x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
    """Return the same as `pullback`, but always by tf.GradientTape.

    The gradient of an integer input is None, as is that of one on which the output does not depend. A None among the
    gradients of the output stands for zeros.
    """
    inputs = tf.nest.flatten(x)
    watched = [tensor for tensor in inputs if tensor.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        y = module(x, mode)

    def backward(d_y: Streams) -> tuple[Streams, Gradients]:
        variables = [each for each in getattr(module, "trainable_variables", ()) if mode.trains(each)]
        pairs = zip(tf.nest.flatten(y), tf.nest.flatten(d_y), strict=True)
        known = [(output, gradient) for output, gradient in pairs if gradient is not None]  # None would stand for ones
        targets, upstream = [output for output, _ in known], [gradient for _, gradient in known]
        found = tape.gradient(targets, [*watched, *variables], output_gradients=upstream)
        of_inputs, of_variables = iter(found[: len(watched)]), found[len(watched) :]
        d_x = [next(of_inputs) if tensor.dtype.is_floating else None for tensor in inputs]
        return tf.nest.pack_sequence_as(x, d_x), list(zip(variables, of_variables, strict=True))

    return y, backward


def chain_pullback(modules: Sequence[Module], x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
    """Return the same as `pullback`, for modules applied one after the other."""
    backwards: list[Pullback] = []
    for module in modules:
        x, backward = pullback(module, x, mode)
        backwards.append(backward)

    def backward_all(d_y: Streams) -> tuple[Streams, Gradients]:
        gradients: Gradients = []
        for backward in reversed(backwards):
            d_y, new = backward(d_y)
            gradients += new
        return d_y, gradients

    return x, backward_all
