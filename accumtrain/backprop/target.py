"""What a graph is traced for: XLA or TensorFlow's own kernels, and which devices there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext  # not public

_for_xla: ContextVar[bool] = ContextVar("for_xla", default=False)


@contextmanager
def for_xla() -> Iterator[None]:
    """Within this context, graphs are traced for compilation by XLA."""
    token = _for_xla.set(True)
    try:
        yield
    finally:
        _for_xla.reset(token)


def is_for_xla() -> bool:
    """Whether the graph that is being traced is for XLA: in `for_xla`, or in a tf.function with jit_compile=True."""
    return _for_xla.get() or (
        not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def by_cpu_kernels() -> bool:
    """Whether TensorFlow's own CPU kernels will run the graph that is being traced."""
    return on_cpu() and not is_for_xla()


def on_cpu() -> bool:
    """Whether all devices of this process are CPUs."""
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return kinds <= {"CPU", "TPU_SYSTEM"}  # tensorflow-tpu lists TPU_SYSTEM even without a TPU


def on_gpu() -> bool:
    """Whether this process has a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))
