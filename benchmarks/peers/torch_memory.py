"""Memory of tensors in PyTorch on a CPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor


def moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The optimizer's state of each parameter."""
    return [value for state in optimizer.state.values() for value in state.values()]


def bytes_at_peak(work: Callable[[], None]) -> int:
    """The most that tensors take at any moment of `work`, of what it allocates itself. A slow turn."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "[memory]"]
    ordered = sorted(events, key=lambda event: event["ts"])
    return max(accumulate(event["args"]["Bytes"] for event in ordered))
