"""A compiled Keras model in the engine."""

from __future__ import annotations

from accumtrain.backprop.model import Model
from accumtrain.kinds.compiled import CompiledModelConfig, running
from accumtrain.models.keras_model import KerasModel
from accumtrain.models.spec import ModelSpec


def build_model(config: CompiledModelConfig, spec: ModelSpec) -> Model:
    """The model with its own variables, so their values at this moment are the initial weights.

    Its output is that of the Keras model; if layers or weights have losses, a pair of that and the sum of these.

    Raises:
        ConfigError: it can't be recomputed, or changes variables in a forward pass that are no statistics.
    """
    compiled = running()
    compiled.reset()
    traced = compiled.traced
    return KerasModel(
        config, compiled.model, spec.variable_dtype, moving=traced.moving, penalised=traced.penalised, joins_loss=True
    )
