"""The values of variables, as buffers on the devices of a mesh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

REPLICAS = "replicas"  # the axis of the mesh
EACH, SAME = PartitionSpec(REPLICAS), PartitionSpec()  # a part for each replica; the same for all


def is_sum(value: Any) -> bool:
    """Return whether each replica adds to a copy of its own of a variable (engine/sums.py)."""
    return getattr(value, "synchronization", None) is tf.VariableSynchronization.ON_READ


class State:
    """Buffers in the place of variables. A variable is out of date until `publish`, and a buffer until `reload`.

    Every device has the same value of a variable, but of a sum its own: the buffer is [replicas, *shape].
    """

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._buffers: dict[Any, jax.Array] = {}  # by reference of a variable or a tensor
        self._newer: set[Any] = set()  # references of the variables whose buffers hold newer values
        self.bytes = 0  # on a device

    def read(self, value: tf.Variable | tf.Tensor) -> jax.Array:
        """Return the buffer of a variable or of a constant. It is made when it is first asked for."""
        ref = value.ref()
        if ref not in self._buffers:
            self._buffers[ref] = self._put(value)
            self.bytes += self._buffers[ref].addressable_shards[0].data.nbytes
        return self._buffers[ref]

    def write(self, variables: Iterable[tf.Variable], buffers: Iterable[jax.Array]) -> None:
        for variable, buffer in zip(variables, buffers, strict=True):
            self._buffers[variable.ref()] = buffer
            self._newer.add(variable.ref())

    def wait(self) -> None:
        """Wait for the programs that compute the buffers."""
        jax.block_until_ready(list(self._buffers.values()))

    def publish(self, variables: Iterable[tf.Variable] | None = None) -> None:
        """Assign the newer values to `variables`; None is all but sums. A sum is that over all replicas."""
        chosen = [ref for ref in self._choose(variables) if ref in self._newer]
        values = jax.device_get([self._buffers[ref] for ref in chosen])
        for ref, value in zip(chosen, values, strict=True):
            variable = ref.deref()
            variable.assign(value.sum(0, dtype=value.dtype) if is_sum(variable) else value)
        self._newer.difference_update(chosen)

    def reload(self, variables: Iterable[tf.Variable] | None = None) -> None:
        """Take the values that were assigned to `variables`; None is all but sums. The first replica has a sum."""
        for ref in self._choose(variables):
            self._buffers[ref] = self._put(ref.deref())
            self._newer.discard(ref)

    def _choose(self, variables: Iterable[tf.Variable] | None) -> list[Any]:
        """Return references of the variables that have a buffer."""
        if variables is None:
            return [ref for ref in self._buffers if not is_sum(ref.deref())]
        return [variable.ref() for variable in variables if variable.ref() in self._buffers]

    def _put(self, value: tf.Variable | tf.Tensor) -> jax.Array:
        array, part = np.array(value.numpy()), SAME
        if is_sum(value):
            others = np.zeros((self._mesh.size - 1, *array.shape), array.dtype)
            array, part = np.concatenate([array[np.newaxis], others]), EACH
        # without an alias, because a program overwrites the buffer, and on a CPU it could be the variable's memory
        return jax.device_put(array, NamedSharding(self._mesh, part), may_alias=False)
