"""The parts of a model: its spec, variables with initial values, and layers as functions over plain variables.

Images are NHWC; a layer computes in the dtype of its input. Kernels are initialised as in the RevNet authors' code
(Gomez et al. 2017, renmengye/revnet-public). Those of convolutions are truncated normal with variance 2 / (k * k *
out), those of dense layers uniform with variance 1 / in. Every draw is a pure function of (seed, order of creation), so
all replicas and all resumed runs start from the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS, FixedPoint, times
from accumtrain.backprop.kernels import is_faster_by_products, kernel_dtype, kernel_gradient
from accumtrain.backprop.linear_logits import LinearLogits
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients
from accumtrain.backprop.tracing import after, computed_after
from accumtrain.errors import ConfigError
from accumtrain.fields import MASKED, NEXT
from accumtrain.process.private import could_possibly_record

MANY_OUTPUTS = 1024  # of a last layer whose logits may be large


class Initializer:
    """Create variables with initial values that depend on the seed and the order of creation only.

    Args:
        seed: the run's seed.
        dtype: dtype of all variables, tf.float32 or tf.float64.
        draws: kernels are drawn; if not, they are zeros.
    """

    def __init__(self, seed: int, dtype: tf.DType = tf.float32, *, draws: bool = True):
        self.seed, self.dtype, self.draws, self.created = seed, dtype, draws, 0

    def _draw(self, shape: tuple[int, ...], name: str, draw: Callable[[list[int]], tf.Tensor]) -> tf.Variable:
        self.created += 1
        variable = tf.Variable(tf.zeros(shape, self.dtype), name=name)
        if self.draws:  # not assigned: the variable would take over the memory of the draw, up to twice as large
            variable.assign_add(tf.cast(draw([self.seed, self.created]), self.dtype))
        return variable

    def conv(self, shape: tuple[int, int, int, int], parts: int = 1) -> tf.Variable:
        """Return a kernel [height, width, in, out]; `parts` of them are drawn like one with parts * out channels."""
        height, width, _, out = shape
        deviation = math.sqrt(2.0 / (height * width * out * parts))
        return self._draw(
            shape, "kernel", lambda seed: tf.random.stateless_truncated_normal(shape, seed, stddev=deviation)
        )

    def dense(self, shape: tuple[int, int]) -> tf.Variable:
        """Return a kernel [in, out]."""
        return self.uniform(shape, math.sqrt(3.0 / shape[0]), "kernel")

    def uniform(self, shape: tuple[int, int], bound: float, name: str) -> tf.Variable:
        """Return a kernel [in, out], drawn uniformly between -bound and bound."""
        return self._draw(shape, name, lambda seed: tf.random.stateless_uniform(shape, seed, -bound, bound))

    def zeros(self, shape: tuple[int, int], name: str) -> tf.Variable:
        return tf.Variable(tf.zeros(shape, self.dtype), name=name)

    def normal(self, shape: tuple[int, int], deviation: float, name: str) -> tf.Variable:
        """Return vectors [number, size], drawn from the truncated normal distribution."""
        return self._draw(shape, name, lambda seed: tf.random.stateless_truncated_normal(shape, seed, stddev=deviation))

    def constant(self, value: float, size: int, name: str, trainable: bool = True) -> tf.Variable:
        return tf.Variable(tf.fill([size], tf.cast(value, self.dtype)), name=name, trainable=trainable)


@dataclass(frozen=True)
class Numerics:
    """The numbers that a function between two streams reads, computes in, and adds to.

    Attributes:
        compute_dtype: dtype of its convolutions; None is that of the input.
        reads: numbers of the stream that it takes; with FLOATS it takes floats.
        adds_to: numbers of the stream to which its output is added; with FLOATS it returns floats.
    """

    compute_dtype: tf.DType | None = None
    reads: FixedPoint = FLOATS
    adds_to: FixedPoint = FLOATS

    def dtype(self, x: tf.Tensor) -> tf.DType:
        """Return the dtype of the computation for the input x."""
        return self.compute_dtype or x.dtype

    def factors(self, x: tf.Tensor, mode: Mode) -> tuple[float, float]:
        """Return the factors of the values that are read of x, and of those of the output."""
        reads, adds_to = (numbers.for_mode(mode).factor(self.dtype(x)) for numbers in (self.reads, self.adds_to))
        return reads, adds_to


FLOATS_ONLY = Numerics()


class Conv(tf.Module):
    """2-D convolution without bias, kernel [size, size, inputs, outputs]; for `parts` see Initializer.conv."""

    def __init__(
        self,
        init: Initializer,
        size: int,
        inputs: int,
        outputs: int,
        stride: int = 1,
        padding: str = "SAME",
        parts: int = 1,
    ):
        super().__init__()
        self.stride, self.padding = stride, padding
        self.kernel = init.conv((size, size, inputs, outputs), parts)

    def __call__(self, x: tf.Tensor, factor: float = 1.0) -> tf.Tensor:
        """Return the convolution of x [N, H, W, inputs], times `factor`, a power of two."""
        kernel = tf.convert_to_tensor(self.kernel)
        products = is_faster_by_products(kernel.shape, x.dtype, width=x.shape[2])
        as_tensorflow = kernel_dtype(x.dtype) == x.dtype and not products
        if as_tensorflow or not could_possibly_record():
            return self._forward(x, times(tf.cast(kernel, x.dtype), factor))

        @tf.custom_gradient  # so that tf.GradientTape gives the same bits as `pullback`
        def convolved(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            used = times(tf.cast(kernel, x.dtype), factor)

            def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                d_used = kernel_gradient(x, d_y, kernel.shape, self.stride, self.padding)
                return self._input_gradient(x, used, d_y), times(tf.cast(d_used, kernel.dtype), factor)

            return self._forward(x, used), backward

        return convolved(x, kernel)

    def pullback(
        self,
        x: tf.Tensor,
        mode: Mode,
        known: tf.Tensor | None = None,
        x_factor: float = 1.0,
        factor: float = 1.0,
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, Gradients]]]:
        """Return the output, and the function from (d_y, x) to the gradients of x and the kernel.

        That function takes x, so that x need not be kept for it. It computes the kernel's gradient first, so that x
        can be freed before the gradient of x takes memory.

        Args:
            known: the output, if it need not be computed.
            x_factor: x is a multiple of it; the gradients are those for x / x_factor.
            factor: on the output; d_y is the gradient for the output without it.
        """
        kernel = tf.cast(self.kernel, x.dtype)

        def backward(d_y: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            if not mode.trains(self.kernel):
                return self._input_gradient(x, kernel, d_y), []
            d_kernel = kernel_gradient(x, d_y, kernel.shape, self.stride, self.padding)
            with computed_after([d_kernel], d_y) as d_y:
                d_x = self._input_gradient(x, kernel, d_y)
            return d_x, [(self.kernel, times(tf.cast(d_kernel, self.kernel.dtype), 1.0 / x_factor))]

        return self._forward(x, times(kernel, factor)) if known is None else known, backward

    def _forward(self, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        computed = kernel_dtype(x.dtype)
        if computed != x.dtype:  # after x, or all kernels are cast when a micro-step begins
            kernel = tf.cast(after([x], kernel), computed)
        y = tf.nn.conv2d(tf.cast(x, computed), kernel, self.stride, self.padding)
        return tf.cast(y, x.dtype)

    def _input_gradient(self, x: tf.Tensor, kernel: tf.Tensor, d_y: tf.Tensor) -> tf.Tensor:
        computed = kernel_dtype(x.dtype)
        if computed != x.dtype:  # after d_y, or the cast kernel is in memory from the forward pass on
            kernel = tf.cast(after([d_y], kernel), computed)
        d_x = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.shape(x),
            filter=kernel,
            out_backprop=tf.cast(d_y, computed),
            strides=[1, self.stride, self.stride, 1],
            padding=self.padding,
        )
        return tf.cast(d_x, x.dtype)


class Dense(tf.Module):
    """x @ kernel + bias. It may have no bias.

    Attributes:
        defers_logits: `predict` may return a `LinearLogits`.
    """

    def __init__(self, init: Initializer, inputs: int, outputs: int, *, has_bias: bool = True):
        super().__init__()
        self.kernel = init.dense((inputs, outputs))
        self.bias = init.constant(0.0, outputs, "bias") if has_bias else None
        self.defers_logits = outputs >= MANY_OUTPUTS

    def predict(self, x: tf.Tensor, mode: Mode) -> tf.Tensor | LinearLogits:
        """Return logits [N, outputs], or their `LinearLogits` if they are large and the mode says so."""
        if not (self.defers_logits and mode.defers_logits):
            return self(x)
        kernel = tf.cast(tf.convert_to_tensor(self.kernel), x.dtype)
        bias = None if self.bias is None else tf.cast(tf.convert_to_tensor(self.bias), x.dtype)
        trains = mode.trains(self.kernel) or (self.bias is not None and mode.trains(self.bias))
        return LinearLogits(x, kernel, bias, x.dtype, trains_kernel=trains).or_logits()

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        computed = kernel_dtype(x.dtype)
        product = tf.matmul(tf.cast(x, computed), tf.cast(tf.cast(self.kernel, x.dtype), computed))
        product = tf.cast(product, x.dtype)
        return product if self.bias is None else product + tf.cast(self.bias, x.dtype)


class Bias(tf.Module):
    """Add one value per channel."""

    def __init__(self, init: Initializer, channels: int):
        super().__init__()
        self.bias = init.constant(0.0, channels, "bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(x, tf.cast(self.bias, x.dtype))


@dataclass(frozen=True)
class ModelSpec:
    """The images, classes, precision and seed for which a model is built.

    Attributes:
        shape: that of an example; of images height, width, channels.
        num_classes: number of outputs: a logit for each class or label, or a number for each number.
        precision: float32, bfloat16, float16 or float64.
        seed: the seed of the run; initial weights are a pure function of it.
        draws: `init` draws kernels. If not, they are zeros, in a model that is restored or only measured: a draw takes
            1.5 seconds of the processor for RevNet-104.
        inputs: the kind of the inputs, such as pixels or tokens, and those that it is a subclass of.
        vocabulary: number of different tokens; 0 for inputs that are no tokens.
        of_bytes: the tokens are the bytes of texts.
        adds_mask: the last token is a mask that the tokenizer does not have, so none of its texts.
        tells: the model tells tokens instead of the class of an example: MASKED ones, or the NEXT of each. Or a class
            for EACH pixel or token, as logits [N, ..., classes].
        init: creates variables with their initial values, in `variable_dtype`.
    """

    shape: tuple[int, ...]
    num_classes: int
    precision: str = "float32"
    seed: int = 0
    draws: bool = True
    inputs: tuple[str, ...] = ("pixels",)
    vocabulary: int = 0
    of_bytes: bool = False
    adds_mask: bool = False
    tells: str | None = None
    init: Initializer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "init", Initializer(self.seed, self.variable_dtype, draws=self.draws))

    def check_tokens(self, given: str, vectors: int, positions: int | None) -> None:
        """Raise ConfigError if published weights do not take the texts.

        Args:
            given: the key and the value that name the weights.
            vectors: the number of tokens that the weights have a vector for.
            positions: the number of tokens of the longest text; None if there is no limit.
        """
        if positions is not None and self.shape[-1] > positions:
            raise ConfigError(
                f"data.length={self.shape[-1]}: {given} has positions for {positions} tokens; give data.length="
                f"{positions} or less"
            )
        used = self.vocabulary - (self.adds_mask and self.tells != MASKED)
        if used > vectors or (self.of_bytes and self.vocabulary < vectors):
            raise ConfigError(
                f"{given}: has vectors for {vectors:,} tokens, and those of the data are {self.vocabulary:,}; give "
                "data.tokenizer the folder or the tokenizer.json of that model"
            )

    def check_told(self, given: str, *, causal: bool) -> None:
        """Raise ConfigError if the tokens of a model can't learn to tell those that the task asks for.

        Args:
            given: the key and the value that name the model.
            causal: its tokens attend to none behind them.
        """
        if self.tells == NEXT and not causal:
            raise ConfigError(
                f"{given}: its tokens attend to the next ones, and can't learn to tell them; use model=decoder_tiny, "
                "or task=masked_tokens"
            )
        if self.tells == MASKED and causal:
            raise ConfigError(
                f"{given}: its tokens attend to none behind them, and task=masked_tokens learns tokens from both "
                "sides; use model=encoder_tiny"
            )

    @property
    def channels(self) -> int:
        return self.shape[-1]

    @property
    def compute_dtype(self) -> tf.DType:
        """The dtype of convolutions and matrix products."""
        return tf.as_dtype(self.precision)

    @property
    def variable_dtype(self) -> tf.DType:
        """The dtype of weights, of the loss and of all sums."""
        return tf.float64 if self.compute_dtype == tf.float64 else tf.float32
