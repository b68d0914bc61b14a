"""The values of variables, as buffers of a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import tensorflow as tf


class State:
    """Buffers in the place of variables.

    A variable is out of date until `publish`, and a buffer until `reload`. Temporary variables, such as the sums of a
    window, take part in these only when they are named.
    """

    def __init__(self, device: jax.Device):
        self._device = device
        self._buffers: dict[Any, jax.Array] = {}  # by reference of a variable or a tensor
        self._newer: set[Any] = set()  # references of the variables whose buffers hold newer values
        self._temporary: set[Any] = set()
        self.bytes = 0

    def mark_temporary(self, variables: Iterable[tf.Variable]) -> None:
        self._temporary.update(variable.ref() for variable in variables)

    def read(self, value: tf.Variable | tf.Tensor) -> jax.Array:
        """Return the buffer of a variable or of a constant. It is made when it is first asked for."""
        ref = value.ref()
        if ref not in self._buffers:
            self._buffers[ref] = self._put(value)
            self.bytes += self._buffers[ref].nbytes
        return self._buffers[ref]

    def write(self, variables: Iterable[tf.Variable], buffers: Iterable[jax.Array]) -> None:
        for variable, buffer in zip(variables, buffers, strict=True):
            self._buffers[variable.ref()] = buffer
            self._newer.add(variable.ref())

    def wait(self) -> None:
        """Wait for the programs that compute the buffers."""
        jax.block_until_ready(list(self._buffers.values()))

    def publish(self, variables: Iterable[tf.Variable] | None = None) -> None:
        """Assign the newer values to `variables`; None is all but temporary ones."""
        chosen = [ref for ref in self._choose(variables) if ref in self._newer]
        values = jax.device_get([self._buffers[ref] for ref in chosen])
        for ref, value in zip(chosen, values, strict=True):
            ref.deref().assign(value)
        self._newer.difference_update(chosen)

    def reload(self, variables: Iterable[tf.Variable] | None = None) -> None:
        """Take the values that were assigned to `variables`; None is all but temporary ones."""
        for ref in self._choose(variables):
            self._buffers[ref] = self._put(ref.deref())
            self._newer.discard(ref)

    def _choose(self, variables: Iterable[tf.Variable] | None) -> list[Any]:
        """Return references of the variables that have a buffer."""
        if variables is None:
            return [ref for ref in self._buffers if ref not in self._temporary]
        return [variable.ref() for variable in variables if variable.ref() in self._buffers]

    def _put(self, value: tf.Variable | tf.Tensor) -> jax.Array:
        # without an alias, because a program overwrites the buffer, and on a CPU it could be the variable's memory
        return jax.device_put(np.array(value.numpy()), self._device, may_alias=False)
