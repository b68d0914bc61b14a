"""Adam (Kingma & Ba 2015, arXiv:1412.6980) and AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from accumtrain.optim.config import AdamConfig, check_arguments
from accumtrain.optim.optimizer import Optimizer, VariableHandle, zeros_slot
from accumtrain.optim.running_mean import HalfLife, RunningMean


class AdamScalars(NamedTuple):
    step_size: tf.Tensor  # rate * sqrt(1 - beta2^t) / (1 - beta1^t)
    epsilon: tf.Tensor  # epsilon * sqrt(1 - beta2^t)
    beta1: tf.Tensor
    beta2: tf.Tensor


class Adam(Optimizer):
    """Algorithm 1 of Kingma & Ba 2015, arXiv:1412.6980. State: two values per weight.

    Args:
        weight_decay: L2: weight_decay * w is added to the gradient.
        beta1: decay rate of the first moment, the mean of the gradients; or its half-life.
        beta2: decay rate of the second moment, the mean of their squares; or its half-life.
        epsilon: added to the square root of the bias-corrected second moment.

    Raises:
        ValueError: a value is out of its range, such as a beta that float32 makes 1 of.
    """

    def __init__(
        self,
        learning_rate: float = 1e-3,
        *,
        weight_decay: float = 0.0,
        beta1: float | HalfLife = 0.9,
        beta2: float | HalfLife = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        shares = {name: kept for name, kept in (("beta1", beta1), ("beta2", beta2)) if not isinstance(kept, HalfLife)}
        check_arguments(AdamConfig, {**shares, "epsilon": epsilon})
        self._first, self._second, self._epsilon = RunningMean(beta1), RunningMean(beta2), epsilon

    @property
    def means(self) -> list[RunningMean]:
        return [self._first, self._second]

    def build_slots(self) -> None:
        self.first_moments = [zeros_slot(parameter, "m") for parameter in self.parameters]
        self.second_moments = [zeros_slot(parameter, "v") for parameter in self.parameters]

    def slots_of(self, index: int) -> dict[str, tf.Variable]:
        return {"m": self.first_moments[index], "v": self.second_moments[index]}

    def step_scalars(self, rate: tf.Tensor, t: tf.Tensor) -> AdamScalars:
        # the update is m_hat / (sqrt(v_hat) + epsilon); its bias corrections are moved into two scalars
        correction1 = _bias_correction(self._first, t)
        correction2 = tf.sqrt(_bias_correction(self._second, t))
        beta1, beta2 = (tf.constant(mean.share, t.dtype) for mean in self.means)
        return AdamScalars(rate * correction2 / correction1, self._epsilon * correction2, beta1, beta2)

    def update_variable(
        self, weight: VariableHandle, slots: Mapping[str, VariableHandle], gradient: tf.Tensor, scalars: AdamScalars
    ) -> None:
        # the fused kernel divides by 1 - beta_power, which cancels in low precision; a beta_power of 0 turns that off
        dtype = gradient.dtype
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=slots["m"].handle,
            v=slots["v"].handle,
            beta1_power=tf.zeros((), dtype),
            beta2_power=tf.zeros((), dtype),
            lr=scalars.step_size,
            beta1=scalars.beta1,
            beta2=scalars.beta2,
            epsilon=scalars.epsilon,
            grad=gradient,
        )


class AdamW(Adam):
    """Adam with decoupled weight decay, w -= rate * weight_decay * w (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

    decoupled_decay = True


def _bias_correction(mean: RunningMean, t: tf.Tensor) -> tf.Tensor:
    """Return 1 - beta^t without cancellation, for betas rounded to the dtype of `t`, as the kernel uses them."""
    return -tf.math.expm1(mean.log_product(t, t.dtype))
