"""TensorFlow's errors in the user's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from accumtrain.config import Config
from accumtrain.data.input_errors import explain_input_error
from accumtrain.data.source import Data
from accumtrain.errors import OutOfMemoryError


@contextmanager
def explained(config: Config, data: Data) -> Iterator[None]:
    """Within, what TensorFlow raises for want of memory or for bad data becomes an error that says what to do."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(_what_would_fit(config)) from error
    except tf.errors.OpError as error:
        reason = explain_input_error(error, data)
        if reason is None:
            raise
        raise reason from error


def _what_would_fit(config: Config) -> str:
    limit = config.device.memory_limit_mb
    where = "the device's memory" if limit is None else f"device.memory_limit_mb={limit}"
    advice = []
    if config.accum.count < config.batch_size:
        advice.append(f"raise accum.steps (now {config.accum.steps}; the result stays the same)")
    if config.model.kind == "revnet" and config.model.memory != "reverse":
        advice.append("set model.memory=reverse")
    elif config.model.kind in ("resnet", "lenet") and config.model.memory == "store":
        advice.append("set model.memory=recompute, or take a RevNet")
    if config.optim.kind != "adafactor":
        advice.append("use optim=adafactor (almost no optimizer state)")
    if config.precision == "float32" and config.model.kind != "lenet":
        advice.append("use precision=bfloat16")
    if limit is not None:
        advice.append("raise device.memory_limit_mb")
    return f"{where} is not enough for this run; " + ", ".join(advice or ["take a smaller model or image"])
