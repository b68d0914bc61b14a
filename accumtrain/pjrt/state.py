"""The values of variables, as buffers of a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import tensorflow as tf


class State:
    """Buffers in the place of variables, which are out of date until `publish`."""

    def __init__(self, device: jax.Device):
        self._device = device
        self._buffers: dict[Any, jax.Array] = {}  # by variable.ref()
        self._newer: set[Any] = set()  # references of the variables whose buffers hold newer values

    def read(self, value: Any) -> jax.Array:
        """Return the buffer of a variable, or of a constant tensor, which is made when it is first asked for."""
        ref = value.ref()
        if ref not in self._buffers:
            self._buffers[ref] = self._put(value)
        return self._buffers[ref]

    def write(self, variables: Iterable[tf.Variable], buffers: Iterable[jax.Array]) -> None:
        for variable, buffer in zip(variables, buffers, strict=True):
            self._buffers[variable.ref()] = buffer
            self._newer.add(variable.ref())

    def publish(self) -> None:
        """Assign the newer values to the variables."""
        refs = sorted(self._newer, key=id)
        values = jax.device_get([self._buffers[ref] for ref in refs])
        for ref, value in zip(refs, values, strict=True):
            ref.deref().assign(value)
        self._newer.clear()

    def reload(self, variables: Iterable[tf.Variable] | None = None) -> None:
        """Take the values of `variables`, or of all that have a buffer, which somebody else has assigned."""
        for ref in [variable.ref() for variable in variables] if variables is not None else list(self._buffers):
            self._buffers[ref] = self._put(ref.deref())
            self._newer.discard(ref)

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def _put(self, value: Any) -> jax.Array:
        # a copy, because a program overwrites the buffer, and on a CPU it could be the memory of the variable
        return jax.device_put(np.array(value.numpy(), copy=True), self._device, may_alias=False)
