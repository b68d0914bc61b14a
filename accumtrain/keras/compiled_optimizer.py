"""The optimizer that a Keras model is compiled with, in the engine's commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from accumtrain.errors import ConfigError
from accumtrain.keras.accumulate import accumulates
from accumtrain.keras.compiled import Compiled
from accumtrain.optim.keras_optimizer import WeightView
from accumtrain.optim.optimizer import Optimizer, Parameter


class CompiledOptimizer(Optimizer):
    """A Keras optimizer on one device: its own `apply`, once per update, with all that is part of it.

    The object itself makes the updates of its model, so its counter and its state go on from where they are. For other
    variables, as job=verify has them, a new one of the same configuration does.
    """

    skips_missing = True

    def __init__(self, model: keras.Model):
        super().__init__(None, 0.0)
        # hidden from tf.Module, which would find the weights through the optimizer
        self._of_model = lambda: (inner_optimizer(model), model.trainable_variables)

    def build(self, variables: Sequence[tf.Variable], decayed: Sequence[bool]) -> None:
        """Raises TypeError if a variable is neither float32 nor float64."""
        optimizer, own = self._of_model()
        if [id(variable.value) for variable in own] != [id(variable) for variable in variables]:
            optimizer = type(optimizer).from_config(optimizer.get_config())
            own = [WeightView(Parameter(variable, decayed=False)) for variable in variables]
        self._of_model = lambda: (optimizer, own)
        super().build(variables, decayed)

    def build_slots(self) -> None:
        optimizer, own = self._of_model()
        if not optimizer.built:
            optimizer.build(own)
        self.slots = [variable.value for variable in optimizer.variables]

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        optimizer, _ = self._of_model()
        return tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float32)

    @tf.autograph.experimental.do_not_convert
    def apply(
        self, gradients: Sequence[tf.Tensor | None], rate: tf.Tensor, step: tf.Tensor, scale: tf.Tensor | float = 1.0
    ) -> None:
        """Makes an update. `rate` and `step` are the optimizer's own."""
        optimizer, own = self._of_model()
        scaled = [None if each is None else each * tf.cast(scale, each.dtype) for each in gradients]
        optimizer.apply_gradients(zip(scaled, own, strict=True))  # which Keras's own fit calls


def build_optimizer(compiled: Compiled, **arguments: Any) -> Optimizer:
    """The optimizer of a compiled model; the arguments are those of every optimizer, and are part of it already."""
    return CompiledOptimizer(compiled.model)


def inner_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """The compiled optimizer, without the loss scale around it, for which the engine has its own.

    Raises:
        ConfigError: it accumulates or scales the loss by itself.
    """
    optimizer = model.optimizer
    if accumulates(optimizer):
        raise ConfigError(
            f"the optimizer {optimizer.name} accumulates by itself, as accumtrain.fit does: compile the model with the "
            "optimizer alone, and give fit the whole batch_size"
        )
    inner = optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer
    if inner.loss_scale_factor:
        raise ConfigError(
            f"the optimizer {inner.name} has loss_scale_factor={inner.loss_scale_factor}, and the engine scales the "
            "loss itself where the precision needs it: leave it out"
        )
    return inner
