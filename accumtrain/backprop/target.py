"""What a graph is traced for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tensorflow as tf

_for_xla: ContextVar[bool] = ContextVar("for_xla", default=False)


@contextmanager
def for_xla() -> Iterator[None]:
    """What is traced within will be compiled by XLA."""
    token = _for_xla.set(True)
    try:
        yield
    finally:
        _for_xla.reset(token)


def is_for_xla() -> bool:
    return _for_xla.get()


def on_cpu() -> bool:
    """Nothing but CPUs computes here."""
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return kinds <= {"CPU", "TPU_SYSTEM"}  # tensorflow-tpu lists the latter without a TPU too


def on_gpu() -> bool:
    """A GPU may compute here."""
    return bool(tf.config.list_logical_devices("GPU"))
