"""From a model's configuration to a model."""

from __future__ import annotations

from accumtrain.backprop.model import Model
from accumtrain.kinds.models import MODELS, ModelConfig
from accumtrain.kinds.table import load
from accumtrain.models.spec import ModelSpec


def build_model(config: ModelConfig, spec: ModelSpec) -> Model:
    """Builds a model with initial weights that are a pure function of `spec.seed`.

    Raises:
        ConfigError: the model can't be built for these images.
    """
    model: Model = load(MODELS[config.kind].build)(config, spec)
    return model
