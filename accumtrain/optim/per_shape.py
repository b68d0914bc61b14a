"""Functions that a graph holds once per shape and calls for each variable of that shape.

A commit of a deep network updates hundreds of variables of a few dozen shapes. Written out for each variable, its graph
would take longer to trace and to compile, and more memory, than the first micro-step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


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
    """Traces `function(variables, *arguments)` once for each combination of shapes, dtypes and Python values.

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
        """Calls the function, in replica context. Returns a tensor that is available when it is done."""
        signature = tuple((name, tuple(each.shape.as_list()), each.dtype.name) for name, each in variables.items())
        return self._function(signature, {name: each.handle for name, each in variables.items()}, *arguments)
