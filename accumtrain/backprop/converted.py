"""A function whose output is converted to what the streams of a reversible network take."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Module, Pullback, pullback


class Converted(tf.Module):
    """`function`, whose output is `converted`; the output and the gradient of the input have `dtype`."""

    def __init__(self, function: Module, dtype: tf.DType):
        super().__init__()
        self.function, self.dtype = function, dtype

    def converted(self, y: tf.Tensor, mode: Mode) -> tf.Tensor:
        """The function's output y as streams take it, in `dtype`. The pullback takes the gradient of y itself."""
        raise NotImplementedError

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        with tf.control_dependencies([x]):  # or the kernels of all units are cast, and kept, from the start
            return self.converted(self.function(x, mode), mode)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        with tf.control_dependencies([x]):
            y, function_backward = pullback(self.function, x, mode)

            def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
                d_x, gradients = function_backward(tf.cast(d_y, y.dtype))
                return tf.cast(d_x, self.dtype), gradients

            return self.converted(y, mode), backward
