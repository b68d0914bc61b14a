"""What decides the bits of floating-point results: the processor, its cores, and what computes."""

from __future__ import annotations

import os

import tensorflow as tf

from accumtrain.process import environment
from accumtrain.process.machine import cpu


def machine() -> str:
    """Return a text that is the same on machines whose kernels give the same bits."""
    found = cpu()
    kernels = os.environ.get(environment.ONEDNN, "default")
    parts = [found["model"], *found["instructions"], f"{os.cpu_count()} cores"]
    return ", ".join([*parts, f"tensorflow {tf.__version__}", f"{environment.ONEDNN}={kernels}"])
