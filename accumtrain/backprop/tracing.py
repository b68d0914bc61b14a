"""The target of a traced graph, XLA or TensorFlow's own kernels on which devices, and the order of its operations.

The order decides which tensors are in memory at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from accumtrain.process.private import GraphOrParentsInXlaContext, optimization_barrier

_for_xla: ContextVar[bool] = ContextVar("for_xla", default=False)


@contextmanager
def for_xla() -> Iterator[None]:
    """Trace graphs for compilation by XLA."""
    token = _for_xla.set(True)
    try:
        yield
    finally:
        _for_xla.reset(token)


def is_for_xla() -> bool:
    """Return whether the graph that is being traced is in `for_xla`, or in a tf.function with jit_compile=True."""
    return _for_xla.get() or (
        not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def by_cpu_kernels() -> bool:
    """Return whether TensorFlow's own CPU kernels will run the graph that is being traced."""
    return on_cpu() and not is_for_xla()


def on_cpu() -> bool:
    """Return whether all devices of this process are CPUs."""
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return kinds <= {"CPU", "TPU_SYSTEM"}  # tensorflow-tpu lists TPU_SYSTEM even without a TPU


def on_gpu() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))


def after(operations: Sequence[Any], tensors: Any) -> Any:
    """Return the same tensors, available only when all of `operations` (tensors or operations) are done.

    A None among the tensors stays None. One among the operations, such as the gradient of an integer, counts as done.
    XLA drops control dependencies. It keeps optimization barriers, but these wait for tensors only.
    """
    first, then = _without_none(operations), _without_none(tensors)
    if not then:
        return tensors
    if is_for_xla():
        awaited = [value for value in first if isinstance(value, tf.Tensor)]
        waiting = iter(optimization_barrier(*awaited, *then)[len(awaited) :])
    else:
        with tf.control_dependencies(first):
            # not tf.identity: the graph optimizer would move casts in front of it, and out of this order
            waiting = iter(tf.identity_n(then))
    return tf.nest.map_structure(lambda tensor: None if tensor is None else next(waiting), tensors)


@contextmanager
def computed_after(operations: Sequence[Any], tensors: Any) -> Iterator[Any]:
    """Yield the same tensors. Operations of the block that use them wait for `operations`."""
    if is_for_xla():
        yield after(operations, tensors)
        return
    with tf.control_dependencies(_without_none(operations)):
        yield tensors


def _without_none(values: Any) -> list[Any]:
    return [value for value in tf.nest.flatten(values) if value is not None]
