"""Batches on their way to a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import jax
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding

from accumtrain.pjrt.state import part_of

BATCHES_HELD = 3  # on a device at the same time: one is computed, one waits for that, one is on its way


class Feed:
    """Batches of iterators. One more of each is on its way to the devices while the last is in use.

    The first axis of a batch, which is a nested tensor, is divided among the devices.
    """

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        # by iterator, as an evaluation between two updates must not lose the batch that training has sent
        self._ahead: WeakKeyDictionary[Iterator[Any], list[jax.Array] | Exception | None] = WeakKeyDictionary()

    def take(self, batches: Iterator[Any]) -> list[jax.Array]:
        """Return the buffers of the next batch. Raise StopIteration where the batches end."""
        if batches not in self._ahead:
            return self.put(next(batches))
        taken = self._ahead.pop(batches)
        if taken is None:
            raise StopIteration
        if isinstance(taken, Exception):
            raise taken
        return taken

    def look_ahead(self, batches: Iterator[Any]) -> None:
        """Send the next batch to the devices. An error is that of the call that takes the batch."""
        try:
            coming = next(batches, None)
            self._ahead[batches] = None if coming is None else self.put(coming)
        except Exception as error:
            self._ahead[batches] = error.with_traceback(None)  # a traceback would keep the iterator alive

    def put(self, batch: Any) -> list[jax.Array]:
        """Return the leaves of a nested tensor as buffers."""
        arrays = [tensor.numpy() for tensor in tf.nest.flatten(batch)]
        return jax.device_put(arrays, [NamedSharding(self._mesh, part_of(array.ndim)) for array in arrays])
