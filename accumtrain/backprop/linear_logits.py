"""`LinearLogits`: the logits of a large linear layer, of which only some rows are in memory at a time.

A loss and metrics of rows are computed for one chunk of them after another. The gradient of the loss is computed with
them. So logits are computed once, and neither they nor their gradient are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from accumtrain.backprop.kernels import kernel_dtype, product
from accumtrain.backprop.tracing import after, computed_after, is_for_xla

SHARE_OF_KERNEL = 1  # a chunk of logits takes the kernel's memory divided by this: each adds to the whole gradient
LEAST_BYTES = 2**24  # of a chunk of logits, if there are as many
BLOCKS = 8  # of a kernel's gradient, to which products are added one after the other

# From logits [n, V], and nested tensors [n, ...] that go with their rows, to values [n].
RowFunction = Callable[[tf.Tensor, Any], tf.Tensor]


@dataclass(frozen=True)
class LinearLogits:
    """The logits hidden @ kernel + bias, [..., V], before they are computed.

    Attributes:
        hidden: [..., C], in the dtype of the logits.
        kernel: [C, V]; or a vector for each of V tokens, [V, C], if `of_table`.
        bias: [V]; None if there is none.
        compute_dtype: of the product.
        trains_kernel: the gradients of kernel and bias are asked for.
    """

    hidden: tf.Tensor
    kernel: tf.Tensor
    bias: tf.Tensor | None
    compute_dtype: tf.DType
    of_table: bool = False
    trains_kernel: bool = True

    @property
    def logits(self) -> tf.Tensor:
        """All logits, [..., V]."""
        inner = [size or tf.shape(self.hidden)[axis] for axis, size in enumerate(self.hidden.shape[:-1])]
        rows = tf.cast(self._rows, self.compute_dtype)
        return tf.reshape(self._multiply(rows, tf.cast(self.kernel, self.compute_dtype)), [*inner, self._outputs])

    def or_logits(self) -> LinearLogits | tf.Tensor:
        """Return the same, or the logits if all of them are one chunk."""
        rows = self.hidden.shape[:-1].num_elements()
        return self.logits if rows is not None and rows <= self._most_rows else self

    def map_hidden(self, function: Callable[[tf.Tensor], tf.Tensor]) -> LinearLogits:
        """Return the same with function(hidden) in the place of hidden."""
        return replace(self, hidden=function(self.hidden))

    def compute(self, functions: Sequence[RowFunction], beside: Any) -> list[tf.Tensor]:
        """Return the values of each function for all R rows, [R] in the dtype of the logits, without gradients.

        Args:
            beside: nested tensors [R, ...].
        """
        values, _ = _run_loop(self, functions, beside, None)
        return values

    def compute_trained(self, function: RowFunction, beside: Any) -> tf.Tensor:
        """Return the values of a function as `compute` does, with gradients, which compute logits once more."""

        @tf.custom_gradient
        def compute_rows(*_: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            (values,) = self.compute([function], beside)
            return values, lambda d_values: _run_loop(self, [function], beside, d_values)[1]

        return compute_rows(*self._trained)

    def compute_sum(
        self, functions: Sequence[RowFunction], beside: Any, weights: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the sum of the first function's values times `weights`, [R], and all values as `compute` does.

        Only the sum has a gradient, which is computed with the values.
        """

        @tf.custom_gradient
        def sum_rows(*_: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
            values, gradients = _run_loop(self, functions, beside, weights)

            def backward(d_sum: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
                return [d_sum * gradient for gradient in gradients]

            return (tf.reduce_sum(weights * values[0]), *values), backward

        total, *values = sum_rows(*self._trained)
        return total, values

    @property
    def _trained(self) -> list[tf.Tensor]:
        """The tensors that have a gradient."""
        if not self.trains_kernel:
            return [self.hidden]
        return [self.hidden, self.kernel] if self.bias is None else [self.hidden, self.kernel, self.bias]

    # ---- the product

    @property
    def _rows(self) -> tf.Tensor:
        return tf.reshape(self.hidden, [-1, self.hidden.shape[-1]])

    @property
    def _outputs(self) -> int:
        return int(self.kernel.shape[0 if self.of_table else 1])

    @property
    def _most_rows(self) -> int:
        """Rows of a chunk."""
        channels, bytes_of_row = int(self.hidden.shape[-1]), self._outputs * self.hidden.dtype.size
        return max(1, channels // SHARE_OF_KERNEL, LEAST_BYTES // bytes_of_row)

    def _multiply(self, rows: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Return the logits of rows [n, C] in the dtype of the product."""
        logits = tf.cast(product(rows, kernel, transpose_b=self.of_table), self.hidden.dtype)
        return logits if self.bias is None else logits + self.bias

    def _divide(self, tensors: Any) -> tuple[Any, int | tf.Tensor]:
        """Return tensors [R, ...] as chunks, [chunks, n, ...], with zeros behind the last row; and their number."""
        rows = self._rows.shape[0]
        if rows is None:
            rows, most = tf.shape(self._rows)[0], self._most_rows
            chunks = -(-rows // most)
        else:  # chunks of equal size
            chunks = max(1, -(-rows // self._most_rows))
            most = max(1, -(-rows // chunks))

        def divide(tensor: tf.Tensor) -> tf.Tensor:
            padded = tf.pad(tensor, [[0, chunks * most - rows], *[[0, 0]] * (tensor.shape.rank - 1)])
            return tf.reshape(padded, [chunks, most, *tensor.shape[1:]])

        return tf.nest.map_structure(divide, tensors), chunks


def _run_loop(
    of: LinearLogits, functions: Sequence[RowFunction], beside: Any, weights: tf.Tensor | None
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return the values of each function, [R], and the gradients of hidden, kernel and bias, as far as asked for.

    The gradients are those of the sum of the first function's values times `weights`; none without these.
    """
    dtype, compute, differentiates = of.hidden.dtype, of.compute_dtype, weights is not None
    (rows, beside, weights), chunks = of._divide((of._rows, beside, weights if differentiates else ()))
    kernel = tf.cast(tf.cast(of.kernel, compute), kernel_dtype(compute))  # once, not for each chunk

    def run_chunk(index: tf.Tensor, stacks: list[tf.TensorArray], sums: list[tf.Tensor]) -> tuple[Any, ...]:
        own, own_beside, own_weights = tf.nest.map_structure(lambda tensor: tensor[index], (rows, beside, weights))
        own = tf.cast(own, compute)
        logits = of._multiply(own, kernel)
        first, *others = functions
        values = [tf.cast(function(logits, own_beside), dtype) for function in others]
        logits = after(values, logits)  # so that the loss is the last to read it, and its gradient takes its memory
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = tf.cast(first(logits, own_beside), dtype)
            loss = tf.reduce_sum(value * own_weights) if differentiates else None
        outputs = [value, *values]
        if loss is not None:
            d_logits = tape.gradient(loss, logits)
            d_product = tf.cast(d_logits, compute)
            outputs.append(tf.cast(product(d_product, kernel, transpose_b=not of.of_table), dtype))
            pair = (d_product, own) if of.of_table else (own, d_product)
            with computed_after([outputs[-1]], pair) as pair:
                added = [_add_product(sums[0], *pair)] if sums else []
            sums = added + [total + tf.reduce_sum(d_logits, axis=0) for total in sums[1:]]
        stacks = [stack.write(index, output) for stack, output in zip(stacks, outputs, strict=True)]
        return index + 1, stacks, sums

    stacked = [tf.TensorArray(dtype, chunks) for _ in range(len(functions) + differentiates)]
    sums = [_zeros(tensor) for tensor in of._trained[1:]] if differentiates else []
    _, stacked, sums = tf.while_loop(
        lambda index, *_: index < chunks,
        run_chunk,
        (0, stacked, sums),
        parallel_iterations=1,
        maximum_iterations=chunks,
    )
    found = [_join(stack.stack())[: tf.shape(of._rows)[0]] for stack in stacked]
    values = found[: len(functions)]
    d_hidden = [tf.reshape(d_rows, tf.shape(of.hidden)) for d_rows in found[len(functions) :]]
    return values, [*d_hidden, *sums]


def _join(chunks: tf.Tensor) -> tf.Tensor:
    """Return chunks [chunks, n, ...] as rows."""
    return tf.reshape(chunks, [-1, *chunks.shape[2:]])


def _zeros(like: tf.Tensor) -> tf.Tensor:
    """Return zeros in memory of their own, which `_add_product` changes."""
    if is_for_xla():
        return tf.zeros_like(like)
    return tf.raw_ops.Empty(shape=tf.shape(like), dtype=like.dtype, init=True)


def _add_product(total: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Return total [A, B] + left^T [n, A] @ right [n, B], in the memory of `total`, which must be of `_zeros`."""
    if is_for_xla():  # which plans memory itself
        return total + tf.cast(product(left, right, transpose_a=True), total.dtype)
    size = -(-int(total.shape[0]) // BLOCKS)
    for start in range(0, int(total.shape[0]), size):
        block = tf.range(start, min(start + size, int(total.shape[0])))
        with tf.control_dependencies([total]):
            added = product(left[:, start : start + size], right, transpose_a=True)
            total = tf.raw_ops.InplaceAdd(x=total, i=block, v=tf.cast(added, total.dtype))
    return total
