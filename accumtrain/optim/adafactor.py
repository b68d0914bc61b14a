"""Adafactor (Shazeer & Stern 2018, arXiv:1804.04235): a second moment of n + m values for an n x m matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from accumtrain.optim.optimizer import Optimizer, Parameter, zeros_slot
from accumtrain.optim.per_shape import VariableHandle

MAX_RELATIVE_STEP = 1e-2


class AdafactorScalars(NamedTuple):
    """Tensors that the updates of all variables share. Constants in each update would be half of the graph."""

    rate: tf.Tensor  # rho_t of the paper
    blend: tf.Tensor  # 1 - beta2_t = t^-decay_exponent; it is 1 at t = 1, so there is no bias to correct
    epsilon1: tf.Tensor
    epsilon2: tf.Tensor
    clip_threshold: tf.Tensor


class Adafactor(Optimizer):
    """Algorithms 4 (matrices) and 5 (vectors) of Shazeer & Stern 2018, arXiv:1804.04235.

        u = g / sqrt(v);  u /= max(1, RMS(u) / clip_threshold);  w -= rate * max(epsilon2, RMS(w)) * u

    A weight of rank >= 2 is a stack of matrices, its last two axes, each with its own factors of v: a convolution
    kernel [height, width, in, out] keeps height * width * (in + out) values. If either axis has length 1, v itself is
    kept, as the factors would be no smaller; the update is the same. RMS is taken over the whole variable.

    Args:
        learning_rate: None is the relative step of the paper, min(1e-2, 1 / sqrt(t)).
        weight_decay: decoupled, w -= rate * weight_decay * w, without the factor max(epsilon2, RMS(w)).
        decay_exponent: beta2_t = 1 - t^-decay_exponent.
        epsilon1: added to g^2.
        epsilon2: smallest factor on the rate, for weights near 0.
        clip_threshold: largest RMS of u.
        scale_parameter: False takes 1 for the factor max(epsilon2, RMS(w)).
        momentum: of the change of w, rate included, as in the authors' code; 0 keeps no first moment.
    """

    decoupled_decay = True

    def __init__(
        self,
        learning_rate: float | None = None,
        *,
        weight_decay: float = 0.0,
        decay_exponent: float = 0.8,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        clip_threshold: float = 1.0,
        scale_parameter: bool = True,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._decay_exponent = decay_exponent
        self._epsilon1, self._epsilon2 = epsilon1, epsilon2
        self._clip_threshold = clip_threshold
        self._scale_parameter = scale_parameter
        self._momentum = momentum

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """The given rate, or the relative step min(1e-2, 1 / sqrt(t)) if that is None; a float32 scalar."""
        if self._learning_rate is not None:
            return super().learning_rate(step)
        return tf.minimum(MAX_RELATIVE_STEP, tf.math.rsqrt(tf.cast(step + 1, tf.float32)))

    def _build_slots(self) -> None:
        parameters = self._parameters
        self.second_moments = [
            FactoredMoment(parameter) if _is_factored(parameter.variable.shape) else FullMoment(parameter)
            for parameter in parameters
        ]
        self.momenta = [zeros_slot(parameter, "momentum") for parameter in parameters] if self._momentum else []

    def _slots(self, index: int) -> dict[str, tf.Variable]:
        momentum = {"momentum": self.momenta[index]} if self._momentum else {}
        return {**self.second_moments[index].slots, **momentum}

    def _scalars(self, rate: tf.Tensor, t: tf.Tensor) -> AdafactorScalars:
        return AdafactorScalars(
            rate,
            blend=tf.pow(t, -self._decay_exponent),
            epsilon1=tf.constant(self._epsilon1, t.dtype),
            epsilon2=tf.constant(self._epsilon2, t.dtype),
            clip_threshold=tf.constant(self._clip_threshold, t.dtype),
        )

    def _update(
        self,
        weight: VariableHandle,
        slots: Mapping[str, VariableHandle],
        gradient: tf.Tensor,
        scalars: AdafactorScalars,
    ) -> None:
        precondition = _by_full_moment if "v" in slots else _by_factors
        update = precondition(slots, gradient, scalars)
        clip = scalars.clip_threshold / tf.maximum(_rms(update), scalars.clip_threshold)
        step_size = scalars.rate * clip
        if self._scale_parameter:
            step_size *= tf.maximum(_rms(weight.read()), scalars.epsilon2)
        if not self._momentum:
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=step_size, delta=update)
            return
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle,
            accum=slots["momentum"].handle,
            lr=tf.ones((), update.dtype),
            grad=(1.0 - self._momentum) * step_size * update,
            momentum=tf.constant(self._momentum, update.dtype),
        )


class FullMoment(tf.Module):
    """The slot of v, the running mean of g^2 + epsilon1."""

    def __init__(self, parameter: Parameter) -> None:
        super().__init__()
        self.value = zeros_slot(parameter, "v")

    @property
    def slots(self) -> dict[str, tf.Variable]:
        return {"v": self.value}


class FactoredMoment(tf.Module):
    """The slots of v = row * column / mean(row): the running means of g^2 + epsilon1 of each row and each column."""

    def __init__(self, parameter: Parameter) -> None:
        super().__init__()
        *stack, rows, columns = parameter.variable.shape.as_list()
        self.row = zeros_slot(parameter, "v_row", [*stack, rows, 1])
        self.column = zeros_slot(parameter, "v_column", [*stack, 1, columns])

    @property
    def slots(self) -> dict[str, tf.Variable]:
        return {"row": self.row, "column": self.column}


def _by_full_moment(slots: Mapping[str, VariableHandle], gradient: tf.Tensor, scalars: AdafactorScalars) -> tf.Tensor:
    """Updates v and returns gradient / sqrt(v)."""
    moment = _update_moment(slots["v"], tf.square(gradient) + scalars.epsilon1, scalars.blend)
    return gradient * tf.math.rsqrt(moment)


def _by_factors(slots: Mapping[str, VariableHandle], gradient: tf.Tensor, scalars: AdafactorScalars) -> tf.Tensor:
    """Updates the factors of v and returns gradient / sqrt(v).

    v itself is never computed: for zero gradients it is epsilon1^2 / epsilon1, which is 0 / 0 in float32.
    """
    square = tf.square(gradient)  # [..., n, m]
    rows = tf.reduce_mean(square, axis=-1, keepdims=True) + scalars.epsilon1
    columns = tf.reduce_mean(square, axis=-2, keepdims=True) + scalars.epsilon1
    row = _update_moment(slots["row"], rows, scalars.blend)  # [..., n, 1]
    column = _update_moment(slots["column"], columns, scalars.blend)  # [..., 1, m]
    row_root = tf.sqrt(row) * tf.math.rsqrt(tf.reduce_mean(row, axis=-2, keepdims=True))  # [..., n, 1]
    # A division by row, no product: Grappler reorders products, and that of the two factors can overflow.
    return gradient * tf.math.rsqrt(column) / row_root  # [..., n, m]


def _is_factored(shape: tf.TensorShape) -> bool:
    return shape.rank >= 2 and min(shape[-2:]) > 1


def _update_moment(moment: VariableHandle, value: tf.Tensor, blend: tf.Tensor) -> tf.Tensor:
    """Sets moment = (1 - blend) * moment + blend * value in place and returns it."""
    moment.assign_add(blend * (value - moment.read()))
    return moment.read()


def _rms(tensor: tf.Tensor) -> tf.Tensor:
    """Root mean square over all values, a scalar."""
    return tf.sqrt(2.0 / tensor.shape.num_elements() * tf.nn.l2_loss(tensor))  # which keeps no squares in memory
