"""Batches on their way to a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding

from accumtrain.pjrt.state import EACH


class Feed:
    """An iterator of batches, of which one more is on its way to the devices while the last is in use.

    Args:
        batches: an iterator of nested tensors, whose first axis is divided among the devices.
    """

    def __init__(self, batches: Iterator[Any], mesh: Mesh):
        self.batches, self._parts = batches, NamedSharding(mesh, EACH)
        self._coming: list[jax.Array] | None = None

    def take(self) -> list[jax.Array]:
        """Return the buffers of the next batch. Raise StopIteration where the batches end."""
        taken, self._coming = self._coming or self._put(next(self.batches)), None
        return taken

    def look_ahead(self) -> None:
        """Send the next batch, if there is one, to the device."""
        coming = next(self.batches, None) if self._coming is None else None
        if coming is not None:
            self._coming = self._put(coming)

    def _put(self, batch: Any) -> list[jax.Array]:
        return jax.device_put([tensor.numpy() for tensor in tf.nest.flatten(batch)], self._parts)
