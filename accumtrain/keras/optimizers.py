"""Every optimizer of keras.optimizers with one more argument: `optimizers.Adam(1e-3, steps=8)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from accumtrain.keras.accumulate_optimizer import Accumulate


def __getattr__(name: str) -> Callable[..., Accumulate]:
    kind = getattr(keras.optimizers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, keras.optimizers.Optimizer):
        raise AttributeError(f"keras.optimizers has no optimizer {name}")
    return partial(accumulated, kind)


def accumulated(kind: type[keras.optimizers.Optimizer], *args: Any, steps: int, **kwargs: Any) -> Accumulate:
    return Accumulate(kind(*args, **kwargs), steps)
