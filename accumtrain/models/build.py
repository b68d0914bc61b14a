"""From a model's configuration to a model: the closed registry of families."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.config import KerasModelConfig, LeNetConfig, ModelConfig, ResNetConfig, RevNetConfig
from accumtrain.models.layers import Initializer
from accumtrain.models.lenet import build_lenet
from accumtrain.models.resnet import build_resnet
from accumtrain.models.revnet import build_revnet
from accumtrain.models.segments import Model, Segment

COMPUTE_DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16, "float16": tf.float16, "float64": tf.float64}


def build_model(
    config: ModelConfig, *, precision: str, seed: int, image_shape: tuple[int, int, int], num_classes: int
) -> Model:
    """Builds a model with initial weights that are a pure function of `seed`.

    Args:
        image_shape: height, width, channels.

    Raises:
        ConfigError: the model can't be built for these images.
    """
    compute_dtype = COMPUTE_DTYPES[precision]
    init = Initializer(seed, tf.float64 if precision == "float64" else tf.float32)
    channels = image_shape[-1]
    segments: list[Segment]
    match config:
        case RevNetConfig():
            segments = build_revnet(config, init, compute_dtype, channels, num_classes)
        case ResNetConfig():
            segments = build_resnet(config, init, channels, num_classes)
        case LeNetConfig():
            segments = build_lenet(config, init, image_shape, num_classes)
        case KerasModelConfig():
            from accumtrain.models.keras_model import build_keras  # importing Keras costs seconds

            return build_keras(config, precision, seed, image_shape, num_classes)
        case _:
            raise TypeError(f"no builder for {type(config).__name__}")
    return Model(segments, compute_dtype)
