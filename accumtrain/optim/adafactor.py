"""Adafactor (Shazeer & Stern 2018, arXiv:1804.04235): a second moment of n + m values for an n x m matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from accumtrain.optim.adafactor_rule import AdafactorRule, AdafactorScalars
from accumtrain.optim.optimizer import Optimizer, Parameter, zeros_slot
from accumtrain.optim.per_shape import VariableHandle


class Adafactor(Optimizer):
    """Shazeer & Stern 2018, arXiv:1804.04235, and its descendants: `AdafactorRule` says what the other arguments do.

    Args:
        learning_rate: None is the relative step of the paper, min(1e-2, 1 / sqrt(t)), times
            `unscaled_relative_step` without `scale_parameter`.
        weight_decay: decoupled, w -= rate * weight_decay * w or as `weight_decay_factor` says.

    Raises:
        ValueError: a value is out of its range.
    """

    decoupled_decay = True

    def __init__(
        self,
        learning_rate: float | None = None,
        *,
        weight_decay: float = 0.0,
        decay_exponent: float = 0.8,
        beta2: float | None = None,
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
        self._rule.check_rate(learning_rate)

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """The given rate, or the relative step if that is None; a float32 scalar."""
        return self._rule.relative_step(step) if self._learning_rate is None else super().learning_rate(step)

    def _build_slots(self) -> None:
        parameters = self._parameters
        shapes = [self._rule.slot_shapes(parameter.variable.shape.as_list()) for parameter in parameters]
        self.second_moments = [
            FullMoment(parameter) if "v" in own else FactoredMoment(parameter, own["row"], own["column"])
            for parameter, own in zip(parameters, shapes, strict=True)
        ]
        self.momenta = [
            zeros_slot(parameter, "momentum")
            for parameter, own in zip(parameters, shapes, strict=True)
            if "momentum" in own
        ]

    def _slots(self, index: int) -> dict[str, tf.Variable]:
        momentum = {"momentum": self.momenta[index]} if self.momenta else {}
        return {**self.second_moments[index].slots, **momentum}

    def _scalars(self, rate: tf.Tensor, t: tf.Tensor) -> AdafactorScalars:
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
        """The rule decays by itself: its weight decay may depend on the size of the weight."""
        slots = dict(variables)
        weight = slots.pop("weight")
        self._rule.update(weight, slots, gradient * scale, scalars, self._weight_decay if decayed else 0.0)


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

    def __init__(self, parameter: Parameter, row: Sequence[int], column: Sequence[int]) -> None:
        super().__init__()
        self.row = zeros_slot(parameter, "v_row", row)
        self.column = zeros_slot(parameter, "v_column", column)

    @property
    def slots(self) -> dict[str, tf.Variable]:
        return {"row": self.row, "column": self.column}
