"""Stochastic gradient descent with momentum, as the ResNet and RevNet papers train."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from accumtrain.optim.config import SgdConfig, check_arguments
from accumtrain.optim.optimizer import Optimizer, VariableHandle, zeros_slot


class SGD(Optimizer):
    """m = momentum * m + g; w -= rate * m, or w -= rate * (g + momentum * m) with Nesterov.

    The rate multiplies m, as in TensorFlow 1 and PyTorch, so a change of the rate acts at once. In Sutskever et al.
    2013 it multiplies g. Weight decay is L2: g + weight_decay * w. State: one value per weight, none without momentum.

    Raises:
        ValueError: a value is out of its range, or nesterov is asked for without momentum.
    """

    def __init__(
        self,
        learning_rate: float = 0.1,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        check_arguments(SgdConfig, {"momentum": momentum, "nesterov": nesterov})
        if nesterov and not momentum:
            raise ValueError(
                "nesterov=True and momentum=0: there is no momentum to look ahead by; give one, such as 0.9"
            )
        self._momentum, self._nesterov = momentum, nesterov

    def build_slots(self) -> None:
        parameters = self.parameters if self._momentum else []
        self.momenta = [zeros_slot(parameter, "momentum") for parameter in parameters]

    def slots_of(self, index: int) -> dict[str, tf.Variable]:
        return {"momentum": self.momenta[index]} if self._momentum else {}

    def step_scalars(self, rate: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        return rate

    def update_variable(
        self, weight: VariableHandle, slots: Mapping[str, VariableHandle], gradient: tf.Tensor, scalars: tf.Tensor
    ) -> None:
        if not self._momentum:
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=scalars, delta=gradient)
            return
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle,
            accum=slots["momentum"].handle,
            lr=scalars,
            grad=gradient,
            momentum=tf.constant(self._momentum, gradient.dtype),
            use_nesterov=self._nesterov,
        )
