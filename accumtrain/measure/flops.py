"""The operations of a traced step, and the floating-point operations among them.

Only convolutions and matrix products count, two operations for each multiply-add. All other operations of a training
step are below a hundredth of these, and bound by memory instead of arithmetic.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from accumtrain.engine.runtime import Runtime, TensorFlowRuntime
from accumtrain.process.private import graph_of_function

PEAK_SIZE, PEAK_REPEATS = 3072, 5  # of the matrix product that measures the device
CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")


def count_flops(graph: tf.Graph, batch: int) -> int:
    """Return the floating-point operations of one run of a function's graph, replays included.

    Operations that the runtime prunes are left out. The body of a loop counts as often as its `maximum_iterations`, or
    once without. Of the branches of a conditional only the largest one counts.

    Args:
        graph: the graph of a tf.function's concrete function.
        batch: the size of a first dimension that is not static.

    Raises:
        ValueError: another dimension of an operation is not static.
    """
    total = 0
    for operation in live_operations(graph):
        if operation.type in _COUNTS:
            total += 2 * _COUNTS[operation.type](operation, batch)
        else:
            inner = [count_flops(called, batch) for called in called_graphs(graph, operation)]
            total += max(inner) if operation.type in _CONDITIONALS and inner else sum(inner) * _repeats(operation)
    return total


def _repeats(operation: tf.Operation) -> int:
    """Return how often the functions run that an operation calls, as far as it is known."""
    if operation.type not in _LOOPS:
        return 1
    most = tf.get_static_value(operation.inputs[1])  # behind the counter of tf.while_loop
    return 1 if most is None else max(1, int(most))


def matmul_flops_per_second(dtype: tf.DType, runtime: Runtime | None = None) -> float:
    """Return the operations per second of a product of two square matrices of PEAK_SIZE: the median of PEAK_REPEATS.

    Args:
        runtime: of the device; None is TensorFlow's.
    """
    runtime = runtime or TensorFlowRuntime()
    a, b = (tf.cast(tf.random.stateless_uniform([PEAK_SIZE] * 2, [0, seed]), dtype) for seed in (1, 2))
    return 2 * PEAK_SIZE**3 / median_seconds(runtime.prepare_call(lambda: tf.matmul(a, b)), PEAK_REPEATS)


def median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the median of the seconds of `repeats` calls, after one that also prepares the kernels.

    Args:
        call: it waits for its own end.
    """
    seconds = []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


# ---- operations that run, and the functions that they call ----


def live_operations(graph: tf.Graph) -> list[tf.Operation]:
    """Return the operations on which results or side effects of a graph depend. The runtime prunes all others."""
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    live = {}
    while waiting:
        operation = waiting.pop()
        if operation.name not in live:
            live[operation.name] = operation
            waiting += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return list(live.values())


def called_graphs(graph: tf.Graph, operation: tf.Operation) -> Iterator[tf.Graph]:
    for attribute in operation.op_def.attr:
        value = operation.get_attr(attribute.name) if attribute.type in ("func", "list(func)") else []
        for function in value if isinstance(value, list) else [value]:
            yield graph_of_function(graph, function.name)


# ---- multiply-adds of an operation ----


def _size(tensor: tf.Tensor, batch: int) -> int:
    if tensor.op.type == "Reshape":  # it may have merged the first dimension with others
        return _size(tensor.op.inputs[0], batch)
    shape = tensor.shape.as_list()
    if None in shape[1:]:
        raise ValueError(f"{tensor.name} has the open shape {shape}")
    return math.prod([batch if size is None else size for size in shape])


def _convolution(image: int, kernel: int) -> Callable[[tf.Operation, int], int]:
    """Count a multiply-add for each value of the kernel at each pixel of the convolution's output.

    Args:
        image: index of the convolution's output, or of its gradient, in [output, *inputs] of the operation.
        kernel: index of the kernel, or of its gradient, in the same list.
    """

    def count(operation: tf.Operation, batch: int) -> int:
        tensors = [operation.outputs[0], *operation.inputs]
        channels = tensors[image].shape[-1 if operation.get_attr("data_format") == b"NHWC" else 1]
        return _size(tensors[image], batch) // channels * _size(tensors[kernel], batch)

    return count


def _matrix_product(transposed: str) -> Callable[[tf.Operation, int], int]:
    """Count the multiply-adds of a product. The attribute `transposed` is true if the first matrix is transposed."""

    def count(operation: tf.Operation, batch: int) -> int:
        a = operation.inputs[0]
        kept, summed = (-1, -2) if operation.get_attr(transposed) else (-2, -1)
        length = a.shape[summed] or _size(a, batch) // a.shape[kept]
        return _size(operation.outputs[0], batch) * length

    return count


_COUNTS: dict[str, Callable[[tf.Operation, int], int]] = {
    "MatMul": _matrix_product("transpose_a"),
    "BatchMatMulV2": _matrix_product("adj_x"),
    **dict.fromkeys(CONVOLUTIONS, _convolution(image=0, kernel=2)),
    **{f"{name}BackpropInput": _convolution(image=3, kernel=2) for name in CONVOLUTIONS},
    **{f"{name}BackpropFilter": _convolution(image=3, kernel=0) for name in CONVOLUTIONS},
}
_CONDITIONALS = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
