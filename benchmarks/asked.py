"""What a piece of work asks of the CPU's allocator at its peak, beside what it is given.

The allocator hands out a free piece whole when that is up to twice too large, so what it reports moves from one build
of a graph to the next, and with all that the process has allocated before; what was asked for does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from accumtrain.train.memory import log_allocations, peak_bytes


def bytes_asked_at_peak(work: Callable[[], Any], *, workspace: bool = True) -> int:
    """The most that was asked for and not yet freed at any moment of `work`, of what it asked for itself.

    Args:
        workspace: with the scratch memory of kernels.
    """
    pieces = [replace(piece, size=piece.asked) for piece in log_allocations(work)]
    return peak_bytes([piece for piece in pieces if workspace or not piece.is_workspace])
