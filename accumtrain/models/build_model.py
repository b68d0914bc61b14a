"""From a model's configuration to a model."""

from __future__ import annotations

from accumtrain.backprop.model import Model
from accumtrain.kinds.model_keys import ModelConfig
from accumtrain.kinds.models import MODELS
from accumtrain.models.path_patterns import frozen_paths
from accumtrain.models.spec import ModelSpec


def build_model(config: ModelConfig, spec: ModelSpec) -> Model:
    """Builds a model with initial weights that are a pure function of `spec.seed`; model.freeze is applied.

    Raises:
        ConfigError: the model can't be built for these images, or model.freeze chooses nothing or everything.
    """
    model: Model = MODELS.build(config, spec)
    if config.freeze:
        learnable = {id(variable) for variable in model.learnable}
        model.freeze(frozen_paths(config.freeze, [path for path, each in model.named.items() if id(each) in learnable]))
    return model
