"""Adafactor (Shazeer & Stern 2018, arXiv:1804.04235): a second moment of n + m values for an n x m matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from accumtrain.optim.config import AdafactorConfig, check_arguments
from accumtrain.optim.optimizer import Optimizer, VariableHandle, zeros_slot
from accumtrain.optim.running_mean import HalfLife, RunningMean

MAX_RELATIVE_STEP = 1e-2
WARMUP = 1e-6  # of the relative step, for each update


class AdafactorScalars(NamedTuple):
    """Tensors that the updates of all variables share. As constants in each update they would be half of the graph."""

    rate: tf.Tensor  # rho_t of the paper
    blend: tf.Tensor  # 1 - beta2_t; it is 1 at t = 1, so there is no bias to correct
    epsilon1: tf.Tensor
    epsilon2: tf.Tensor
    clip_threshold: tf.Tensor | None


class AdafactorRule:
    """Algorithms 4 (matrices) and 5 (vectors) of Shazeer & Stern 2018, arXiv:1804.04235.

        u = g / sqrt(v);  u /= max(1, RMS(u) / clip_threshold);  w -= rate * max(epsilon2, RMS(w)) * u

    A weight of rank >= 2 is a stack of matrices along two of its axes. Each matrix has its own factors of v. So a
    convolution kernel [height, width, in, out] keeps height * width * (in + out) values. RMS is taken over the whole
    weight.

    `AdafactorConfig` says what the options do. Beyond that:
        beta2: corrected for the start at 0 as in Section 7.1 of the paper. It may be a `HalfLife`.
        epsilon1: a normal float32 number, so that zero gradients are no 0 / 0.
        unscaled_relative_step: factor on the relative step without `scale_parameter`, which is then an absolute one.
            0.05, as in Mesh TensorFlow, is about the size of a weight. `warmup_init` is as in transformers.
        min_dim_size_to_factor: with an axis of length 1 the factors are no smaller than v, and the update is the same.
        factored_axes: `last` takes the last two axes as the matrices, `largest` the two longest; of equal axes the
            later ones.
        momentum_of: `change` averages the change of w, rate included, as the authors' code does; `update` averages u.
        weight_decay_factor: decoupled decay is w -= factor * weight_decay * w with the factor `rate`, or `step_size`,
            which is rate * max(epsilon2, RMS(w)), or `one`. The factor `rate` comes first, and RMS(w) is that of the
            decayed weight; with the others it is that of the weight before.

    Raises:
        ValueError: an option is out of its range, or `warmup_init` is given with a rate, which it would not warm up.
    """

    def __init__(self, learning_rate: object, **options: Any):
        self.options = options
        beta2 = options.get("beta2")
        self.second = None if beta2 is None else RunningMean(beta2)
        plain = {name: value for name, value in options.items() if not isinstance(value, HalfLife)}
        check_arguments(AdafactorConfig, plain)
        self._keys = AdafactorConfig(lr=None, **plain)
        if self._keys.warmup_init and learning_rate is not None:
            raise ValueError(
                f"warmup_init=True and learning_rate={learning_rate!r}: only the relative step warms up; "
                "leave learning_rate=None, or give a schedule that warms up"
            )

    def slot_shapes(self, shape: Sequence[int]) -> dict[str, list[int]]:
        """Return the shapes of a weight's slots: `v`, or its factors `row` and `column`; `momentum` if there is one.

        The factors have the rank of the weight, so [..., n, m] has a row [..., n, 1] and a column [..., 1, m]. All
        slots start at 0, in the dtype of the weight.
        """
        axes = self._factored(shape)
        momentum = {"momentum": list(shape)} if self._keys.momentum else {}
        if axes is None:
            return {"v": list(shape), **momentum}
        rows, columns = axes
        return {"row": _without(shape, columns), "column": _without(shape, rows), **momentum}

    def relative_step(self, step: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Return the paper's rate after `step` updates, min(1e-2, 1 / sqrt(t)), a scalar of `dtype`, by the options."""
        t = tf.cast(step + 1, dtype)
        largest = WARMUP * t if self._keys.warmup_init else MAX_RELATIVE_STEP
        relative = tf.minimum(tf.math.rsqrt(t), largest)
        return relative if self._keys.scale_parameter else self._keys.unscaled_relative_step * relative

    def scalars(self, rate: tf.Tensor, t: tf.Tensor) -> AdafactorScalars:
        """Return the scalars of update t, which counts from 1, for all weights of the dtype of `rate` and `t`."""
        largest = self._keys.clip_threshold
        return AdafactorScalars(
            rate,
            blend=self._blend(t),
            epsilon1=tf.constant(self._keys.epsilon1, t.dtype),
            epsilon2=tf.constant(self._keys.epsilon2, t.dtype),
            clip_threshold=None if largest is None else tf.constant(largest, t.dtype),
        )

    def update(
        self,
        variables: Mapping[str, VariableHandle],
        gradient: tf.Tensor,
        scalars: AdafactorScalars,
        weight_decay: float,
    ) -> None:
        """Update a weight and its slots in place.

        Args:
            variables: `weight`, float32 or float64, of any static shape; and its slots, as `slot_shapes` names them.
            gradient: a tensor of the weight's shape and dtype.
            scalars: of this update, in that dtype.
            weight_decay: decoupled; 0 does not decay.
        """
        weight, rate = variables["weight"], scalars.rate
        if weight_decay and self._keys.weight_decay_factor == "rate":
            weight.assign_sub(rate * weight_decay * weight.read())
        if "v" in variables:
            moment = _average(variables["v"], tf.square(gradient) + scalars.epsilon1, scalars.blend)
            update = gradient * tf.math.rsqrt(moment)
        else:
            update = self._by_factors(variables, gradient, scalars)
        clip: tf.Tensor | float = 1.0
        if scalars.clip_threshold is not None:
            clip = scalars.clip_threshold / tf.maximum(_rms(update), scalars.clip_threshold)
        scale = tf.maximum(_rms(weight.read()), scalars.epsilon2) if self._keys.scale_parameter else 1.0
        if weight_decay and self._keys.weight_decay_factor != "rate":
            factor = rate * scale if self._keys.weight_decay_factor == "step_size" else 1.0
            weight.assign_sub(factor * weight_decay * weight.read())
        if not self._keys.momentum:
            _descend(weight, rate * clip * scale, update)
        elif self._keys.momentum_of == "update":
            _descend(weight, rate * scale, _average(variables["momentum"], clip * update, 1.0 - self._keys.momentum))
        else:
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle,
                accum=variables["momentum"].handle,
                lr=tf.ones((), update.dtype),
                grad=(1.0 - self._keys.momentum) * (rate * clip * scale) * update,
                momentum=tf.constant(self._keys.momentum, update.dtype),
            )

    def _factored(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """Return the axes of the rows and of the columns, in this order, or None if v itself is kept."""
        axes = list(range(len(shape)))
        if self._keys.factored_axes == "largest":
            axes.sort(key=lambda axis: shape[axis])
        pair = sorted(axes[-2:])
        if len(pair) < 2 or min(shape[axis] for axis in pair) < self._keys.min_dim_size_to_factor:
            return None
        return pair[0], pair[1]

    def _blend(self, t: tf.Tensor) -> tf.Tensor:
        """Return 1 - beta2_t."""
        if self.second is None:
            return tf.pow(t, -self._keys.decay_exponent)
        return (self.second.share - 1.0) / tf.math.expm1(self.second.log_product(t))  # (1 - beta2) / (1 - beta2^t)

    def _by_factors(
        self, slots: Mapping[str, VariableHandle], gradient: tf.Tensor, scalars: AdafactorScalars
    ) -> tf.Tensor:
        """Update the factors of v = row * column / mean(row). Return gradient / sqrt(v).

        v itself is never computed: for zero gradients it is epsilon1^2 / epsilon1, which is 0 / 0 in float32. Shapes in
        the comments are those of [..., n, m] with the last axes factored.
        """
        axes = self._factored(gradient.shape.as_list())
        assert axes is not None
        row_axis, column_axis = axes
        square = tf.square(gradient)  # [..., n, m]
        rows = tf.reduce_mean(square, axis=column_axis, keepdims=True) + scalars.epsilon1
        columns = tf.reduce_mean(square, axis=row_axis, keepdims=True) + scalars.epsilon1
        row = _average(slots["row"], rows, scalars.blend)  # [..., n, 1]
        column = _average(slots["column"], columns, scalars.blend)  # [..., 1, m]
        row_root = tf.sqrt(row) * tf.math.rsqrt(tf.reduce_mean(row, axis=row_axis, keepdims=True))  # [..., n, 1]
        # A division by row, no product: Grappler reorders products, and that of the two factors can overflow.
        return gradient * tf.math.rsqrt(column) / row_root  # [..., n, m]


class Adafactor(Optimizer):
    """Shazeer & Stern 2018, arXiv:1804.04235, and its descendants: `AdafactorConfig` says what the other arguments do.

    Args:
        learning_rate: None is the relative step of the paper, min(1e-2, 1 / sqrt(t)), times
            `unscaled_relative_step` without `scale_parameter`.
        weight_decay: decoupled, w -= rate * weight_decay * w or as `weight_decay_factor` says.

    Raises:
        ValueError: a value is out of its range.
    """

    decoupled_decay = True  # by the rule, see `_change`

    def __init__(
        self,
        learning_rate: float | None = None,
        *,
        weight_decay: float = 0.0,
        decay_exponent: float = 0.8,
        beta2: float | HalfLife | None = None,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        clip_threshold: float | None = 1.0,
        scale_parameter: bool = True,
        unscaled_relative_step: float = 0.05,
        warmup_init: bool = False,
        min_dim_size_to_factor: int = 2,
        factored_axes: str = "last",
        momentum: float = 0.0,
        momentum_of: str = "change",
        weight_decay_factor: str = "rate",
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._rule = AdafactorRule(
            learning_rate,
            decay_exponent=decay_exponent,
            beta2=beta2,
            epsilon1=epsilon1,
            epsilon2=epsilon2,
            clip_threshold=clip_threshold,
            scale_parameter=scale_parameter,
            unscaled_relative_step=unscaled_relative_step,
            warmup_init=warmup_init,
            min_dim_size_to_factor=min_dim_size_to_factor,
            factored_axes=factored_axes,
            momentum=momentum,
            momentum_of=momentum_of,
            weight_decay_factor=weight_decay_factor,
        )

    @property
    def means(self) -> list[RunningMean]:
        return [] if self._rule.second is None else [self._rule.second]

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Return the given rate, or the relative step if that is None: a scalar of `dtype`."""
        own = self._learning_rate is None
        return self._rule.relative_step(step, self.dtype) if own else super().learning_rate(step)

    def build_slots(self) -> None:
        self.second_moments, self.momenta = [], []
        for parameter in self.parameters:
            shapes = self._rule.slot_shapes(parameter.variable.shape.as_list())
            if "momentum" in shapes:
                self.momenta.append(zeros_slot(parameter, "momentum"))
            if "v" in shapes:
                self.second_moments.append({"value": zeros_slot(parameter, "v")})  # its name in checkpoints
            else:
                factors = {name: zeros_slot(parameter, f"v_{name}", shapes[name]) for name in ("row", "column")}
                self.second_moments.append(factors)

    def slots_of(self, index: int) -> dict[str, tf.Variable]:
        moment = {"v" if name == "value" else name: slot for name, slot in self.second_moments[index].items()}
        return {**moment, "momentum": self.momenta[index]} if self.momenta else moment

    def step_scalars(self, rate: tf.Tensor, t: tf.Tensor) -> AdafactorScalars:
        return self._rule.scalars(rate, t)

    def _change(
        self,
        variables: Mapping[str, VariableHandle],
        decayed: bool,
        gradient: tf.Tensor,
        scale: tf.Tensor,
        rate: tf.Tensor,
        scalars: AdafactorScalars,
    ) -> None:
        """Update by the rule, which decays by itself, as its weight decay may depend on the size of the weight."""
        self._rule.update(variables, gradient * scale, scalars, self._weight_decay if decayed else 0.0)


def _without(shape: Sequence[int], axis: int) -> list[int]:
    """Return the shape after a mean over an axis that stays, with length 1."""
    return [*shape[:axis], 1, *shape[axis + 1 :]]


def _average(average: VariableHandle, value: tf.Tensor, blend: tf.Tensor | float) -> tf.Tensor:
    """Set average = (1 - blend) * average + blend * value in place. Return it."""
    average.assign_add(blend * (value - average.read()))
    return average.read()


def _descend(weight: VariableHandle, step_size: tf.Tensor, update: tf.Tensor) -> None:
    tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=step_size, delta=update)


def _rms(tensor: tf.Tensor) -> tf.Tensor:
    """Return the root mean square over all values, a scalar."""
    return tf.sqrt(2.0 / tensor.shape.num_elements() * tf.nn.l2_loss(tensor))  # l2_loss keeps no squares in memory
