"""What tensors ask for at their peak, whatever the allocator hands out for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from accumtrain.engine.allocation_log import Log, log_allocations
from accumtrain.engine.workspace import paired, peak_bytes, without_workspace


def bytes_asked_at_peak(work: Callable[[], Any]) -> int:
    """The most bytes that `work` has asked for at a moment, those of workspaces left out.

    What is handed out may be twice as much, and depends on all that the process has allocated before.
    """
    log = log_allocations(work)
    asked = Log([replace(change, size=change.asked) for change in log.changes])
    return peak_bytes(without_workspace(list(paired(asked))))
