"""The interface between the commit and the update rules: slots are made once, an update is one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

Change = Callable[[], "tf.Operation | None"]  # returns the op to wait for, None in eager mode


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

    Weight decay is done here, on decayed variables only: L2 (gradient + weight_decay * w), or where a rule says
    `decoupled_decay`, w -= rate * weight_decay * w just before the update. A rule implements `_build_slots`,
    `_scalars` and `_update`.
    """

    decoupled_decay = False

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
    def apply(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor, scale: tf.Tensor | float = 1.0
    ) -> None:
        """Makes one update of all variables.

        Args:
            gradients: one per variable, of its shape and dtype.
            rate: `learning_rate(step)` times the schedule, a float scalar.
            step: updates done so far, an int64 scalar; the rules count this update as t = step + 1.
            scale: multiplies each gradient in its turn, so that no second set of them is ever there.
        """
        in_sequence(self._changes(gradients, rate, step, scale))

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

    def _update(self, index: int, variable: tf.Variable, gradient: tf.Tensor, scalars: Any) -> tf.Operation | None:
        """Updates variable number `index`; returns the op that does (None in eager mode)."""
        raise NotImplementedError

    def _changes(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor, scale: tf.Tensor | float
    ) -> Iterator[Change]:
        scalars: dict[tf.DType, Any] = {}
        for dtype in {parameter.variable.dtype for parameter in self._parameters}:
            scalars[dtype] = self._scalars(tf.cast(rate, dtype), tf.cast(step + 1, dtype))
        for index, (parameter, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            variable = parameter.variable
            decayed = parameter.decayed and self._weight_decay
            if decayed and self.decoupled_decay:
                yield partial(self._decay, variable, rate)
            update = self._update_with_l2 if decayed and not self.decoupled_decay else self._update
            yield partial(self._scaled, update, index, variable, gradient, scale, scalars[variable.dtype])

    @staticmethod
    def _scaled(
        update: Callable, index: int, variable: tf.Variable, gradient: tf.Tensor, scale: tf.Tensor | float, scalars: Any
    ) -> tf.Operation | None:
        return update(index, variable, gradient * scale, scalars)

    def _decay(self, variable: tf.Variable, rate: tf.Tensor) -> tf.Operation | None:
        """Decoupled decay (Loshchilov & Hutter 2019, arXiv:1711.05101)."""
        shrink = tf.cast(rate, variable.dtype) * self._weight_decay
        return variable.assign_sub(shrink * variable, read_value=False)

    def _update_with_l2(
        self, index: int, variable: tf.Variable, gradient: tf.Tensor, scalars: Any
    ) -> tf.Operation | None:
        """The update of loss + weight_decay / 2 * |w|^2."""
        return self._update(index, variable, gradient + self._weight_decay * variable, scalars)


def in_sequence(changes: Iterable[Change]) -> None:
    """Makes each change wait for the one before: temporaries then take the memory of one variable, not of all."""
    previous: list[tf.Operation] = []
    for change in changes:
        with tf.control_dependencies(previous):
            operation = change()
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
