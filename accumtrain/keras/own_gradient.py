"""Computes with Keras layers such that a tape records none of it, but a backward function of one's own instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from accumtrain.backprop.pullback import Gradients
from accumtrain.backprop.replay import Consume
from accumtrain.backprop.target import for_xla, is_for_xla
from accumtrain.keras.pure_layer import PureLayer, Values, has_gradient

# (kept, gradients of the outputs, consume) -> gradients of the inputs
Backward = Callable[[list[tf.Tensor], list[tf.Tensor], Consume], list[tf.Tensor | None]]
# inputs -> outputs, the tensors to keep, and the backward function
Forward = Callable[[list[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor], Backward]]


def with_own_gradient(
    forward: Forward, inputs: Sequence[tf.Tensor], values: Values, calls: Sequence[PureLayer]
) -> list[tf.Tensor]:
    """Returns the outputs of `forward`. Its inner tensors are freed; its backward function computes them again.

    Args:
        forward: makes `calls`, which read `values`. Its backward function hands the gradients of their weights to
            `consume`, and must be able to run more than once.

    Raises:
        ValueError: on back-propagation, if a layer reads a trainable variable that is not its own.
        NotImplementedError: on a second derivative.
    """

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        marker = _marker(*tensors)
        constants = [tf.stop_gradient(tensor) for tensor in tensors]
        weights = constants[count:]
        values.weights = dict(zip(values.weights, weights, strict=True))
        outputs, kept, back = forward(constants[:count])
        number = len(outputs)
        traced_for = for_xla if is_for_xla() else nullcontext  # the gradient may be traced elsewhere

        def backward(*d_results: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
            _refuse_foreign(variables)
            with traced_for():
                *once, _ = _differentiable_once(*kept, *weights, marker)
                values.weights = dict(zip(values.weights, once[len(kept) :], strict=True))
                d_losses = iter(d_results[number:])
                for call in calls:
                    call.loss_gradients = [next(d_losses) for _ in range(call.losses)]
                sums: dict[int, tf.Tensor] = {}
                d_inputs = back(once[: len(kept)], list(d_results[:number]), lambda found: _add(sums, found))
            return [*d_inputs, *map(sums.get, values.weights)]

        return [*outputs, *values.losses], backward

    count = len(inputs)
    results = run(*inputs, *values.weights.values())
    outputs = results[: len(results) - len(values.losses)]
    values.losses = results[len(outputs) :]
    return outputs


def _add(sums: dict[int, tf.Tensor], found: Gradients) -> list[tf.Tensor]:
    """Adds gradients to the sums of their variables, which layers may share. Returns the sums that have changed."""
    new = {id(variable): gradient for variable, gradient in found if gradient is not None}
    for key, gradient in new.items():
        sums[key] = sums[key] + gradient if key in sums else gradient
    return [sums[key] for key in new]


@tf.custom_gradient
def _marker(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """A scalar that a tape takes to depend on all of the tensors. It keeps none of them."""
    return tf.zeros([]), _refuse_second_derivative(tensors)


@tf.custom_gradient
def _differentiable_once(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
    """The same tensors. A second derivative, which would need what is not kept, arrives here and is refused."""
    return [tf.identity(tensor) for tensor in tensors], _refuse_second_derivative(tensors)


def _refuse_second_derivative(tensors: Sequence[tf.Tensor]) -> Callable:
    eager = tf.executing_eagerly()
    symbolic = () if eager else tensors  # eager ones would stay in memory

    def refuse(*upstream: tf.Tensor | None) -> Any:
        if eager or symbolic[0].graph is tf.compat.v1.get_default_graph():
            raise NotImplementedError(
                "a second derivative (also forward mode) can't be taken through layers whose activations are not kept; "
                "use memory='store', or the layer without recompute"
            )
        # TensorFlow differentiates a function in advance, for a persistent tape or to save it; mostly only zeros arrive
        arrived = [tf.reduce_any(d != 0) for d in upstream if d is not None]
        value = tf.where(tf.reduce_any(arrived), float("nan"), 0.0)
        return [tf.fill(tf.shape(x), tf.cast(value, x.dtype)) if has_gradient(x) else None for x in symbolic]

    return refuse


def _refuse_foreign(variables: Sequence[tf.Variable]) -> None:
    if variables:
        raise ValueError(
            f"the trainable variable {variables[0].name} is used inside a replayed layer, but is not one of its "
            "weights, so its gradient would be lost; make it with add_weight, or make its layer an attribute"
        )
