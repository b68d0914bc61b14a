"""How long the kernels of a micro-step take, each timed by itself, without compiling and running the whole."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import tensorflow as tf

from accumtrain.engine.live_operations import CONVOLUTIONS_AND_GRADIENTS, all_live_operations

# Operations for which oneDNN has kernels of its own; by far the most of the time of a network for images.
TIMED = (*CONVOLUTIONS_AND_GRADIENTS, "FusedBatchNormV3", "FusedBatchNormGradV3", "MatMul", "BatchMatMulV2")
SIZES = ("input_sizes", "filter_sizes")  # inputs that hold the shape of the output
MOST_ROUNDS, SECONDS = 32, 3.0  # rounds end after so many seconds, but not before the second


def seconds_of_kernels(graph: tf.Graph, batch: int) -> float:
    """Seconds that the TIMED operations of a micro-step take in this process, one after the other.

    Operations of the same kind, shapes and attributes are timed once a round. The quickest of all rounds counts, as
    whatever else runs on the machine makes them slower.

    Args:
        graph: the graph of the traced micro-step.
        batch: size to take for a first dimension that is not static.
    """
    calls: dict[Hashable, Callable[[], Any]] = {}
    counts: Counter[Hashable] = Counter()
    zeros = cache(tf.zeros)  # tensors of one shape and dtype are one tensor, so all of them take little memory
    for operation in all_live_operations(graph):
        if operation.type in TIMED:
            key = _signature(operation, batch)
            counts[key] += 1
            if key not in calls:
                calls[key] = _call(operation, batch, zeros)
    for call in calls.values():
        call()  # prepares the kernel
    quickest = dict.fromkeys(calls, math.inf)
    started = time.perf_counter()
    for number in range(MOST_ROUNDS):
        for key, call in calls.items():
            quickest[key] = min(quickest[key], _seconds(call))
        if number > 0 and time.perf_counter() - started > SECONDS:
            break
    return sum(counts[key] * seconds for key, seconds in quickest.items())


def _signature(operation: tf.Operation, batch: int) -> Hashable:
    tensors = (*operation.inputs, operation.outputs[0])
    shapes = tuple((tuple(_shape(tensor, batch)), tensor.dtype) for tensor in tensors)
    return operation.type, shapes, str(sorted(_attributes(operation).items()))


def _attributes(operation: tf.Operation) -> dict[str, Any]:
    """All attributes but the types, which follow from the inputs."""
    names = [each.name for each in operation.op_def.attr if each.type != "type"]
    return {name: operation.get_attr(name) for name in names}


def _shape(tensor: tf.Tensor, batch: int) -> list[int]:
    """The static shape, with `batch` in place of an open first dimension. What a kernel reserves for another is []."""
    if tensor.shape.rank is None:
        return []
    return [batch if size is None else size for size in tensor.shape]


def _call(operation: tf.Operation, batch: int, zeros: Callable[..., tf.Tensor]) -> Callable[[], Any]:
    """A function that runs the operation once, on `zeros` of a shape and a dtype."""
    inputs: dict[str, Any] = {
        argument.name: _shape(operation.outputs[0], batch)
        if argument.name in SIZES
        else zeros(tuple(_shape(tensor, batch)), tensor.dtype)
        for argument, tensor in zip(operation.op_def.input_arg, operation.inputs, strict=True)
    }
    run = getattr(tf.raw_ops, operation.type)
    attributes = _attributes(operation)
    return lambda: run(**inputs, **attributes)


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - started
