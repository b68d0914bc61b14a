"""Adapters of linear layers: LoRA (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.backprop.kernels import product
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.tracing import after, computed_after
from accumtrain.models.layers import Initializer
from accumtrain.models.published.config import Adapters
from accumtrain.models.transformers.dropout import Dropout
from accumtrain.models.transformers.layers import Linear, as_rows, with_axes_of

ADAPTER_ENDINGS = (".lora_A.weight", ".lora_B.weight")  # of the names of kernels, behind that of their layer, in PEFT


class LoraLinear(Linear):
    """The function x @ kernel + bias + (x @ kernel_a) @ kernel_b * alpha / rank. At first kernel_b is 0.

    As in PEFT, kernel_a [inputs, rank] is drawn between -1 / sqrt(inputs) and 1 / sqrt(inputs).

    Args:
        dropout: of the x that kernel_a multiplies.
    """

    def __init__(
        self,
        init: Initializer,
        inputs: int,
        outputs: int,
        adapters: Adapters,
        dropout: Dropout,
        *,
        has_bias: bool = True,
    ):
        super().__init__(init, inputs, outputs, has_bias=has_bias)
        self.kernel_a = init.uniform((inputs, adapters.rank), inputs**-0.5, "kernel_a")
        self.kernel_b = init.zeros((adapters.rank, outputs), "kernel_b")
        self.scale, self.dropout = adapters.alpha / adapters.rank, dropout

    @property
    def kernels(self) -> tuple[tf.Variable, tf.Variable]:
        """Those of the adapter."""
        return self.kernel_a, self.kernel_b

    def merge(self) -> np.ndarray:
        """Return the kernel of the linear layer that computes the same."""
        merged: np.ndarray = self.kernel.numpy() + self.scale * (self.kernel_a.numpy() @ self.kernel_b.numpy())
        return merged

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        y, base_backward = super().pullback(x, mode)
        kernel_a, kernel_b = (tf.cast(kernel, x.dtype) for kernel in self.kernels)
        scale = tf.constant(self.scale, x.dtype)
        inner = product(as_rows(self.dropout(x, mode)), kernel_a)
        y = y + with_axes_of(product(inner, kernel_b) * scale, x)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            d_rows = as_rows(d_y) * scale
            d_inner = product(d_rows, kernel_b, transpose_b=True)
            gradients: Gradients = []
            if mode.trains(self.kernel_b):
                d_kernel_b = product(inner, d_rows, transpose_a=True)
                gradients.append((self.kernel_b, tf.cast(d_kernel_b, self.kernel_b.dtype)))
            if mode.trains(self.kernel_a):
                again = self.dropout(after([d_inner], x), mode)  # so that x alone is kept
                d_kernel_a = product(as_rows(again), d_inner, transpose_a=True)
                gradients.append((self.kernel_a, tf.cast(d_kernel_a, self.kernel_a.dtype)))
            with computed_after([gradient for _, gradient in gradients], d_y) as d_y:
                d_x, base_gradients = base_backward(d_y)
                d_input = with_axes_of(product(d_inner, kernel_a, transpose_b=True), x)
            return d_x + self.dropout(d_input, mode), gradients + base_gradients

        return y, backward
