"""Memory that a device refuses or a limit does not allow, as the error that TensorFlow's allocators raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import tensorflow as tf

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # the beginning of JAX's message


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise tf.errors.ResourceExhaustedError in the place of JAX's error, within this context."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith(OUT_OF_MEMORY):
            raise
        raise tf.errors.ResourceExhaustedError(None, None, str(error)) from error


def check_limit(planned: int, limit: int | None) -> None:
    """Raise tf.errors.ResourceExhaustedError if a compiler has planned with more bytes than the limit."""
    if limit is not None and planned > limit:
        raise tf.errors.ResourceExhaustedError(
            None, None, f"the compiled programs take {planned:,} bytes, and the limit is {limit:,}"
        )
