"""What a module computes, and how a gradient goes back through it.

Modules that say themselves how (a method `pullback(x, mode)`) decide in which order gradients are computed and what is
kept for them until then; for all others TensorFlow's tape does.
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
    """y = module(x, mode), and the function from the gradient of y to those of x and of the module's variables.

    No module is the identity.
    """
    if module is None:
        return x, lambda d_y: (d_y, [])
    own = getattr(module, "pullback", None)
    return tape_pullback(module, x, mode) if own is None else own(x, mode)


def tape_pullback(module: Module, x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
    """As `pullback`, by tf.GradientTape."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = module(x, mode)

    def backward(d_y: Streams) -> tuple[Streams, Gradients]:
        inputs, variables = tf.nest.flatten(x), getattr(module, "trainable_variables", ())
        gradients = tape.gradient(tf.nest.flatten(y), [*inputs, *variables], output_gradients=tf.nest.flatten(d_y))
        d_x = tf.nest.pack_sequence_as(x, gradients[: len(inputs)])
        return d_x, list(zip(variables, gradients[len(inputs) :], strict=True))

    return y, backward


def chain_pullback(modules: Sequence[Module], x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
    """As `pullback`, of modules applied one after the other."""
    backwards: list[Pullback] = []
    for module in modules:
        x, backward = pullback(module, x, mode)
        backwards.append(backward)

    def all_backward(d_y: Streams) -> tuple[Streams, Gradients]:
        gradients: Gradients = []
        for backward in reversed(backwards):
            d_y, new = backward(d_y)
            gradients += new
        return d_y, gradients

    return x, all_backward
