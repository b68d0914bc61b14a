"""The noise scale of the gradient (McCandlish et al. 2018, arXiv:1812.06162), from micro-gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from accumtrain.fields import NOISE

KEPT = 0.99  # share of the means that each update keeps


class NoiseSums(NamedTuple):
    """Sums over the micro-steps of a window that have examples, as buffers or tensors."""

    squares: Any  # of |g|^2 / w, where g is the sum of the gradients of a micro-step and w its weight
    micro_steps: Any

    def add(self, square: tf.Tensor, weight: tf.Tensor) -> None:
        """Add the squared norm of the gradient of a micro-step whose examples have a weight."""
        weight = tf.cast(weight, square.dtype)
        self.squares.assign_add(tf.math.divide_no_nan(square, weight))
        self.micro_steps.assign_add(tf.cast(weight > 0.0, self.micro_steps.dtype))


class MicroGradient:
    """The squared norm of the gradient of one micro-step, while that is traced.

    A variable that is used twice, as a tied table of tokens, has several gradients. Their sum counts, for which the
    earlier ones are kept until the last is there.
    """

    def __init__(self) -> None:
        self._parts: dict[Any, list[tf.Tensor]] = {}
        self._squares: list[tf.Tensor] = []

    def add(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Tensor:
        """Add a gradient of a variable. Return what is to be computed before the gradient is let go."""
        parts = self._parts.setdefault(variable.ref(), [])
        square = 2.0 * tf.nn.l2_loss(gradient)  # keeps no squares in memory
        for part in parts:
            square += 2.0 * tf.tensordot(tf.reshape(part, [-1]), tf.reshape(gradient, [-1]), 1)
        parts.append(gradient)
        self._squares.append(square)
        return square

    @property
    def square(self) -> tf.Tensor:
        return tf.add_n(self._squares)


class NoiseScale(tf.Module):
    """The trace of the covariance of an example's gradient, divided by the squared norm of the true gradient.

    Where the weight of an example is a number of tokens, it is that of a token. Both parts are estimated without bias
    from each update, however many examples its micro-batches have. Their means are formed apart, as the parts of one
    update say little. Create it inside the strategy's scope.
    """

    def __init__(self) -> None:
        super().__init__()
        self._square, self._variance, self._updates = (
            tf.Variable(0.0, trainable=False, dtype=tf.float64, name=name) for name in ("square", "variance", "updates")
        )
        self._means = (self._square, self._variance)

    @property
    def facts(self) -> list[float]:
        """Return its state, for the manifest of a checkpoint."""
        return [float(each.numpy()) for each in (*self._means, self._updates)]

    def restore(self, facts: Sequence[float]) -> None:
        """Go on from the `facts` of a checkpoint."""
        for variable, value in zip((*self._means, self._updates), facts, strict=True):
            variable.assign(value)

    def update(self, sums: NoiseSums, square: tf.Tensor, weight: tf.Tensor, unscaled: Any) -> None:
        """Take an update into the means.

        Args:
            sums: of all replicas.
            square: squared norm of the sum of the gradients of all examples.
            weight: of all examples.
            unscaled: factor on the squares that takes that of a loss scale out of them.
        """
        squares, micro_steps, square, weight = (tf.cast(each, tf.float64) for each in (*sums, square, weight))
        squares, square = (each * tf.cast(unscaled, tf.float64) for each in (squares, square))
        told = tf.cast(micro_steps > 1.0, tf.float64)  # of a single micro-step nothing is
        variance = tf.math.divide_no_nan(squares - square / weight, micro_steps - 1.0)
        for mean, value in zip(self._means, (square / weight**2 - variance / weight, variance), strict=True):
            mean.assign_add((value - mean) * (1.0 - KEPT) * told)
        self._updates.assign_add(told)

    def read(self) -> dict[str, tf.Tensor]:
        """Return the scale and its two parts by name, float64 scalars. It is infinite where no gradient is found."""
        share = 1.0 - KEPT ** tf.convert_to_tensor(self._updates)  # the means began at 0
        square, variance = (tf.math.divide_no_nan(tf.convert_to_tensor(each), share) for each in self._means)
        scale = tf.where(square > 0.0, variance / square, tf.constant(float("inf"), tf.float64))
        return dict(zip(NOISE, (scale, square, variance), strict=True))
