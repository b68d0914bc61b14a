"""The interface between the commit and the update rules: slots are made once, an update is one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Parameter:
    """A trained variable, and whether weight decay applies to it.

    No `tf.Module` on purpose: what an optimizer holds in here is neither its state nor part of its checkpoint.
    """

    variable: tf.Variable
    decayed: bool

    @property
    def path(self) -> str:
        return self.variable.name.split(":")[0]


class Optimizer(tf.Module):
    """Update math over plain `tf.Variable`s.

    Under `tf.distribute`, `build` runs inside `strategy.scope()` and `apply` in a replica context, with the same
    gradients on all replicas. No slot is aggregated: every replica writes its own copy, nothing is merged, so an
    update may stand inside `tf.cond`.

    A rule implements `_build_slots`, `_scalars` and `_update`.
    """

    def __init__(self, lr: float | None, weight_decay: float) -> None:
        super().__init__()
        self._lr = lr
        self._weight_decay = weight_decay
        self._parameters: list[Parameter] = []

    def build(self, variables: Sequence[tf.Variable], decayed: Sequence[bool]) -> None:
        """Allocates the slots, in the dtype of their variable.

        Args:
            variables: float32 or float64, in the order of the gradients that `apply` gets.
            decayed: one flag per variable: does weight decay apply to it?

        Raises:
            TypeError: a variable is neither float32 nor float64.
        """
        for variable in variables:
            if variable.dtype not in (tf.float32, tf.float64):
                raise TypeError(f"{variable.name} is {variable.dtype.name}; optimizers keep float32 or float64 weights")
        pairs = zip(variables, decayed, strict=True)
        self._parameters = [Parameter(variable, bool(decay)) for variable, decay in pairs]
        self._build_slots()

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """The rate before the schedule, a float32 scalar, when `step` (int64 scalar) updates are done."""
        return tf.constant(self._lr, tf.float32)

    @tf.autograph.experimental.do_not_convert
    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor) -> None:
        """Makes one update of all variables.

        Args:
            gradients: one per variable, of its shape and dtype.
            rate: `learning_rate(step)` times the schedule, a float scalar.
            step: updates done so far, an int64 scalar; the rules count this update as t = step + 1.
        """
        scalars: dict[tf.DType, Any] = {}
        for dtype in {parameter.variable.dtype for parameter in self._parameters}:
            scalars[dtype] = self._scalars(tf.cast(rate, dtype), tf.cast(step + 1, dtype))
        in_sequence(
            partial(self._update, index, parameter, gradient, scalars[parameter.variable.dtype])
            for index, (parameter, gradient) in enumerate(zip(self._parameters, gradients, strict=True))
        )

    @property
    def state(self) -> list[tf.Variable]:
        """All slots: what a checkpoint holds and what counts as optimizer memory."""
        return list(self.variables)

    def _build_slots(self) -> None:
        """Creates the slots of `self._parameters`."""
        raise NotImplementedError

    def _scalars(self, rate: tf.Tensor, t: tf.Tensor) -> Any:
        """What the updates of all variables of a dtype share; `rate` and `t` are scalars of that dtype."""
        raise NotImplementedError

    def _update(self, index: int, parameter: Parameter, gradient: tf.Tensor, scalars: Any) -> tf.Operation | None:
        """Updates one variable; returns the op that does (None in eager mode)."""
        raise NotImplementedError

    def _add_l2(self, parameter: Parameter, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient of loss + weight_decay / 2 * |w|^2."""
        if not (parameter.decayed and self._weight_decay):
            return gradient
        return gradient + self._weight_decay * parameter.variable

    def _decay(self, parameter: Parameter, rate: tf.Tensor) -> tf.Operation | None:
        """Decoupled decay (Loshchilov & Hutter 2019, arXiv:1711.05101): w -= rate * weight_decay * w."""
        if not (parameter.decayed and self._weight_decay):
            return None
        weight = parameter.variable
        return weight.assign_sub(tf.cast(rate, weight.dtype) * self._weight_decay * weight, read_value=False)


def in_sequence(updates: Iterable[Callable[[], tf.Operation | None]]) -> None:
    """Makes each update wait for the one before: temporaries then take the memory of one variable, not of all.

    An update returns the op to wait for, or None where there is none (in eager mode).
    """
    previous: list[tf.Operation] = []
    for update in updates:
        with tf.control_dependencies(previous):
            operation = update()
        if operation is not None:
            previous = [operation]


def zeros_slot(parameter: Parameter, name: str, shape: Sequence[int] | None = None) -> tf.Variable:
    """A slot of zeros, of the parameter's dtype and, unless `shape` is given, its shape."""
    variable = parameter.variable
    return tf.Variable(
        tf.zeros(variable.shape if shape is None else shape, variable.dtype),
        trainable=False,
        aggregation=tf.VariableAggregation.NONE,
        name=f"{parameter.path}/{name}",
    )
