"""The values of variables, as buffers on the devices of a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

REPLICAS = "replicas"  # the axis of the mesh
EACH, SAME = PartitionSpec(REPLICAS), PartitionSpec()  # a part for each replica; the same for all


def part_of(rank: int) -> PartitionSpec:
    """Return how an input of a program is divided: along its first axis. A scalar is that of all replicas."""
    return EACH if rank else SAME


def is_sum(value: Any) -> bool:
    """Return whether each replica adds to a copy of its own of a variable (engine/sums.py)."""
    return getattr(value, "synchronization", None) is tf.VariableSynchronization.ON_READ


class State:
    """Buffers in the place of variables. It is known which of the two is newer; the other is updated when it is read.

    Every device has the same value of a variable, but of a sum its own: the buffer is [replicas, *shape].

    Args:
        stale: see JaxRuntime.
    """

    def __init__(self, mesh: Mesh, stale: float | None = None):
        self._mesh, self._stale = mesh, stale
        self._buffers: dict[Any, jax.Array] = {}  # by reference of a variable or a tensor
        self._computed: set[Any] = set()  # references of the variables whose buffers hold newer values
        self._assigned: set[Any] = set()  # of those that may hold newer values than their buffers
        self.bytes = 0  # on a device

    def read(self, value: tf.Variable | tf.Tensor) -> jax.Array:
        """Return the newest buffer of a variable or of a constant."""
        ref = value.ref()
        if ref not in self._buffers:
            self._buffers[ref] = self._put(value)
            self.bytes += self._buffers[ref].addressable_shards[0].data.nbytes
        elif ref in self._assigned:
            self._buffers[ref] = self._put(value)
        self._assigned.discard(ref)
        return self._buffers[ref]

    def write(self, variables: Iterable[tf.Variable], buffers: Iterable[jax.Array]) -> None:
        for variable, buffer in zip(variables, buffers, strict=True):
            self._buffers[variable.ref()] = buffer
            self._computed.add(variable.ref())
            if self._stale is not None:
                value = np.array(self._stale if variable.dtype.is_floating else -1)
                variable.assign(np.broadcast_to(value.astype(variable.dtype.as_numpy_dtype), variable.shape))

    def wait(self) -> None:
        """Wait for the programs that compute the buffers."""
        jax.block_until_ready(list(self._buffers.values()))

    @contextmanager
    def reading(self, variables: Iterable[tf.Variable] | None) -> Iterator[None]:
        """Give the variables their newest values; None is all but sums. A sum is that over all replicas."""
        chosen = [ref for ref in self._choose(variables) if ref in self._computed]
        values = jax.device_get([self._buffers[ref] for ref in chosen])
        for ref, value in zip(chosen, values, strict=True):
            variable = ref.deref()
            variable.assign(value.sum(0, dtype=value.dtype) if is_sum(variable) else value)
        self._computed.difference_update(chosen)
        yield

    @contextmanager
    def assigning(self, variables: Iterable[tf.Variable] | None) -> Iterator[None]:
        """Do as `reading`, and let the next program take the variables. A sum goes to the first replica.

        The next program may be within it. The values that a program within it writes to the variables are lost.
        """
        variables = None if variables is None else list(variables)
        with self.reading(variables):
            self._assigned.update(self._choose(variables))
            try:
                yield
            finally:
                chosen = self._choose(variables)  # a program within may have made buffers
                self._computed.difference_update(chosen)
                self._assigned.update(chosen)

    def _choose(self, variables: Iterable[tf.Variable] | None) -> list[Any]:
        """Return references of the variables that have a buffer."""
        if variables is not None:
            return [variable.ref() for variable in variables if variable.ref() in self._buffers]
        values = {ref: ref.deref() for ref in self._buffers}
        return [ref for ref, value in values.items() if not (isinstance(value, tf.Tensor) or is_sum(value))]

    def _put(self, value: tf.Variable | tf.Tensor) -> jax.Array:
        array, part = np.array(value.numpy()), SAME
        if is_sum(value):
            others = np.zeros((self._mesh.size - 1, *array.shape), array.dtype)
            array, part = np.concatenate([array[np.newaxis], others]), EACH
        # without an alias, because a program overwrites the buffer, and on a CPU it could be the variable's memory
        return jax.device_put(array, NamedSharding(self._mesh, part), may_alias=False)
