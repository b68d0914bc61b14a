"""All of a model in float64, for the programs that need torch and transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def in_float64(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Give the model, whose layers mean float64 where they name float32. Those of Llama do, whatever its dtype is."""
    kept = torch.float32, torch.float
    torch.float32 = torch.float = torch.float64
    try:
        for module in model.modules():
            if hasattr(module, "rotary_emb"):
                module.rotary_emb = type(module.rotary_emb)(module.config)
        yield model
    finally:
        torch.float32, torch.float = kept
