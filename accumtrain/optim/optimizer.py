"""The base class of the optimizers, one function per shape of variables, and adaptive clipping.

A commit of a deep network updates hundreds of variables of a few dozen shapes. Its graph holds one function per shape
and calls it for each variable. Written out for each variable, it would take longer to trace and to compile, and more
memory, than the first micro-step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from accumtrain.optim.config import OptimConfig, check_arguments
from accumtrain.optim.running_mean import RunningMean

Change = Callable[[], tf.Tensor]  # changes variables; returns a tensor that is available when this is done
SMALLEST_WEIGHT = 1e-3  # the norm that counts for a unit with smaller weights, or it would never move


class VariableHandle:
    """A variable inside a shared function: the copy of the current replica.

    Attributes:
        handle: its resource tensor, for operations that update in place.
        shape, dtype: static; a shape of None is unknown.
    """

    def __init__(self, handle: tf.Tensor, shape: tuple[int, ...] | None, dtype: str | tf.DType):
        self.handle, self.shape, self.dtype = handle, tf.TensorShape(shape), tf.as_dtype(dtype)

    def read(self) -> tf.Tensor:
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
        value.set_shape(self.shape)  # not ensure_shape, whose result has a dynamic shape for XLA
        return value

    def assign(self, value: tf.Tensor) -> None:
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)

    def assign_add(self, value: tf.Tensor) -> None:
        tf.raw_ops.AssignAddVariableOp(resource=self.handle, value=value)

    def assign_sub(self, value: tf.Tensor) -> None:
        tf.raw_ops.AssignSubVariableOp(resource=self.handle, value=value)


class PerShapeFunction:
    """Trace `function(variables, *arguments)` once for each combination of shapes, dtypes and Python values.

    Args:
        function: takes a mapping of `VariableHandle`s, then tensors, nests of tensors or hashable Python values. It
            changes the variables and returns nothing.
    """

    def __init__(self, function: Callable[..., None]):
        def body(signature: tuple, handles: Mapping[str, tf.Tensor], *arguments: Any) -> tf.Tensor:
            function({name: VariableHandle(handles[name], *kind) for name, *kind in signature}, *arguments)
            return tf.constant(True)

        self._function = tf.function(body, autograph=False, experimental_attributes={"_noinline": True})

    def __call__(self, variables: Mapping[str, tf.Variable], *arguments: Any) -> tf.Tensor:
        """Call the function, in replica context. Returns a tensor that is available when it is done."""
        signature = tuple((name, tuple(var.shape.as_list()), var.dtype.name) for name, var in variables.items())
        return self._function(signature, {name: var.handle for name, var in variables.items()}, *arguments)


@dataclass(frozen=True)
class Parameter:
    """A trained variable, with the factor on its rate. Weight decay applies to it if it is `decayed`.

    It is not a `tf.Module`, so that the variable counts neither as state of the optimizer nor for its checkpoint.
    """

    variable: tf.Variable
    decayed: bool
    rate_factor: float = 1.0

    def rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Return `rate` in the variable's dtype, times its factor."""
        rate = tf.cast(rate, self.variable.dtype)
        return rate if self.rate_factor == 1.0 else self.rate_factor * rate

    @property
    def path(self) -> str:
        return self.variable.name.split(":")[0]


class Optimizer(tf.Module):
    """Base class of an update rule over plain `tf.Variable`s.

    Under `tf.distribute`, `build` runs inside `strategy.scope()` and `apply` in a replica context, with the same
    gradients on all replicas. Slots are not aggregated: every replica writes its own copy, so an update may stand
    inside `tf.cond`.

    This class applies weight decay, to decayed variables only: L2 (gradient + weight_decay * w) or, if a subclass sets
    `decoupled_decay`, w -= rate * weight_decay * w just before the update. A subclass implements `build_slots`,
    `slots_of`, `step_scalars` and `update_variable`. Adafactor, which decays by its own rule, overrides `_change`.

    Raises:
        ValueError: learning_rate is no number above 0, or None in a class without a `learning_rate` of its own;
            weight_decay is no number of at least 0.
    """

    decoupled_decay = False
    skips_missing = False  # `apply` gets None, not 0, for a variable on which the loss does not depend

    def __init__(self, learning_rate: float | None, weight_decay: float) -> None:
        super().__init__()
        check_arguments(OptimConfig, {"learning_rate": learning_rate, "weight_decay": weight_decay})
        if learning_rate is None and type(self).learning_rate is Optimizer.learning_rate:
            raise ValueError(
                f"learning_rate=None: {type(self).__name__} has no rate of its own; give one, such as 1e-3"
            )
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self.parameters: list[Parameter] = []
        self._rate_factors: list[float] = []
        self._change_one = PerShapeFunction(self._change)

    def build(self, variables: Sequence[tf.Variable], decayed: Sequence[bool]) -> None:
        """Create the slots, in the dtype of their variable.

        Args:
            variables: float32 or float64, in the order of the gradients that `apply` gets.
            decayed: true for each variable to which weight decay applies.

        Raises:
            TypeError: a variable is neither float32 nor float64.
        """
        for variable in variables:
            if variable.dtype not in (tf.float32, tf.float64):
                raise TypeError(f"{variable.name} is {variable.dtype.name}; optimizers keep float32 or float64 weights")
        factors = self._rate_factors or [1.0] * len(variables)
        rows = zip(variables, decayed, factors, strict=True)
        self.parameters = [Parameter(variable, bool(decay), factor) for variable, decay, factor in rows]
        self.build_slots()

    def scale_rates(self, factors: Sequence[float]) -> None:
        """Give a factor on the rate for each of the variables that `build` will get."""
        self._rate_factors = list(factors)

    @property
    def means(self) -> Sequence[RunningMean]:
        """The running means of the rule that correct their start at 0, or may have a half-life in examples."""
        return ()

    def follow(self, step: int, batch: int) -> bool:
        """Let the means follow the batch (`RunningMean.follow`). Return whether `apply` is to be traced again."""
        changed = [mean.follow(step, batch) for mean in self.means]
        return any(changed)

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Return the rate before the schedule, a scalar of `dtype`, after `step` updates (an int64 scalar)."""
        return tf.constant(self._learning_rate, self.dtype)

    @property
    def dtype(self) -> tf.DType:
        """The dtype in which rates are computed: that of the first variable; float32 before `build`."""
        return self.parameters[0].variable.dtype if self.parameters else tf.float32

    @tf.autograph.experimental.do_not_convert
    def apply(
        self, gradients: Sequence[tf.Tensor | None], rate: tf.Tensor, step: tf.Tensor, scale: tf.Tensor | float = 1.0
    ) -> None:
        """Make one update of all variables.

        Args:
            gradients: one per variable, of its shape and dtype; None, only with `skips_missing`, for a variable on
                which the loss does not depend.
            rate: `learning_rate(step)` times the schedule, a float scalar.
            step: updates done so far, an int64 scalar; the rules count this update as t = step + 1.
            scale: factor on the gradients, a float scalar. It multiplies one gradient at a time, so there is never a
                second set of gradients in memory.
        """
        groups = {_group(parameter): parameter for parameter in self.parameters}
        rates = {group: parameter.rate(rate) for group, parameter in groups.items()}
        scales = {dtype: tf.cast(scale, dtype) for dtype, _ in groups}
        scalars = {group: self.step_scalars(own, tf.cast(step + 1, own.dtype)) for group, own in rates.items()}
        apply_one_by_one(
            partial(
                self._change_one,
                {"weight": parameter.variable, **self.slots_of(index)},
                parameter.decayed and self._weight_decay != 0.0,
                gradient,
                scales[parameter.variable.dtype],
                rates[_group(parameter)],
                scalars[_group(parameter)],
            )
            for index, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True))
        )

    @property
    def state(self) -> list[tf.Variable]:
        """All slots. A checkpoint holds them, and they count as optimizer memory."""
        return list(self.variables)

    def build_slots(self) -> None:
        """Create the slots of `self.parameters`."""
        raise NotImplementedError

    def slots_of(self, index: int) -> dict[str, tf.Variable]:
        """Return the slots of variable number `index`, by name."""
        raise NotImplementedError

    def step_scalars(self, rate: tf.Tensor, t: tf.Tensor) -> Any:
        """Return tensors that updates of the same dtype and rate share. `rate` and `t` are scalars of that dtype."""
        raise NotImplementedError

    def update_variable(
        self, weight: VariableHandle, slots: Mapping[str, VariableHandle], gradient: tf.Tensor, scalars: Any
    ) -> None:
        """Update a variable and its slots."""
        raise NotImplementedError

    def _change(
        self,
        variables: Mapping[str, VariableHandle],
        decayed: bool,
        gradient: tf.Tensor,
        scale: tf.Tensor,
        rate: tf.Tensor,
        scalars: Any,
    ) -> None:
        slots = dict(variables)
        weight = slots.pop("weight")
        gradient *= scale
        if decayed and self.decoupled_decay:
            self._decay(weight, rate)
        elif decayed:  # gradient of loss + weight_decay / 2 * |w|^2
            gradient += self._weight_decay * weight.read()
        self.update_variable(weight, slots, gradient, scalars)

    def _decay(self, weight: VariableHandle, rate: tf.Tensor) -> None:
        """Apply decoupled decay (Loshchilov & Hutter 2019, arXiv:1711.05101)."""
        weight.assign_sub(rate * self._weight_decay * weight.read())


def _group(parameter: Parameter) -> tuple[tf.DType, float]:
    """Return the group of a parameter. Parameters of a group share their scalars."""
    return parameter.variable.dtype, parameter.rate_factor


def apply_one_by_one(changes: Iterable[Change]) -> None:
    """Make the changes one after the other, so that temporaries take the memory of one variable, not of all."""
    previous: list[tf.Tensor] = []
    for change in changes:
        with tf.control_dependencies(previous):
            previous = [change()]


def zeros_slot(parameter: Parameter, name: str, shape: Sequence[int] | None = None) -> tf.Variable:
    """Return a slot of zeros, of the parameter's dtype and, unless `shape` is given, its shape."""
    variable = parameter.variable
    return tf.Variable(
        tf.zeros(variable.shape if shape is None else shape, variable.dtype),
        trainable=False,
        aggregation=tf.VariableAggregation.NONE,
        name=f"{parameter.path}/{name}",
    )


def clip_by_weight(gradient: tf.Tensor, weight: tf.Tensor | tf.Variable, ratio: float | tf.Tensor) -> tf.Tensor:
    """Scale the gradient of each unit down to a norm of `ratio` times that of the unit's weights.

    This is adaptive gradient clipping (Brock et al. 2021, arXiv:2102.06171).

    A unit is all of a kernel that belongs to one index of its last axis, and the whole of a vector or scalar. In
    kernels of dense layers and convolutions, [..., inputs, outputs], it computes one output, as in the paper. Two kinds
    of Keras's kernels have coarser units. A depthwise one, [height, width, channels, multiplier], has one of all
    channels for each multiple. Those of attention, [inputs, heads, size], have one of all heads for each index of
    `size`.

    Args:
        gradient: a tensor.
        weight: a tensor or variable of the same shape and dtype.
        ratio: the largest one of the two norms.
    """
    axes = list(range(gradient.shape.rank - 1)) if gradient.shape.rank > 1 else None
    gradient_norm, weight_norm = _norm(gradient, axes), _norm(weight, axes)
    limit = tf.cast(ratio, weight.dtype) * tf.maximum(weight_norm, SMALLEST_WEIGHT)
    # nothing is divided by 0: the limit is positive
    return gradient * (limit / tf.maximum(gradient_norm, limit))


def _norm(tensor: tf.Tensor, axes: list[int] | None) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(tf.square(tensor), axis=axes))
