"""The memory that operations take for themselves while they run: scratch of convolutions and other kernels.

It says nothing about a model's activations, and differs between CPUs: with AVX-512 oneDNN's convolutions take little,
without it TensorFlow's own take about as much as the processor's last cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from accumtrain.engine.allocation_log import Change, log_allocations


@dataclass(frozen=True)
class Allocation:
    """A piece of memory that was handed out; its times in picoseconds.

    Attributes:
        ended: when it was given back; None if it was not.
        operation_ended: when the operation ended that took it; None if none did.
    """

    size: int
    began: int
    ended: int | None
    operation_ended: int | None

    @property
    def is_workspace(self) -> bool:
        """Whether the operation that took it gave it back before its own end."""
        return self.ended is not None and self.operation_ended is not None and self.ended <= self.operation_ended


def workspace_at_peak(work: Callable[[], Any]) -> int:
    """Bytes by which workspaces raise the peak of what `work` allocates on the CPU.

    Raises:
        tf.errors.OpError: a profiler runs in this process already, or its file can't be written.
        OSError: there is no folder for temporary files.
    """
    allocations = list(paired(log_allocations(work)))
    return peak_bytes(allocations) - peak_bytes(without_workspace(allocations))


def without_workspace(allocations: list[Allocation]) -> list[Allocation]:
    """What is left for tensors."""
    return [each for each in allocations if not each.is_workspace]


def peak_bytes(allocations: list[Allocation]) -> int:
    """The most bytes held at any moment."""
    changes = [(each.began, each.size) for each in allocations]
    changes += [(each.ended, -each.size) for each in allocations if each.ended is not None]
    held = peak = 0
    for _, change in sorted(changes):  # what is given back at a moment comes before what is taken
        held += change
        peak = max(peak, held)
    return peak


def paired(changes: Iterable[Change]) -> Iterator[Allocation]:
    """The pieces of a log, each with its begin and its end."""
    held: dict[int, Allocation] = {}
    for change in changes:
        if change.taken:
            held[change.address] = Allocation(change.size, change.moment, None, change.operation_ended)
        elif taken := held.pop(change.address, None):
            yield replace(taken, ended=change.moment)
    yield from held.values()
