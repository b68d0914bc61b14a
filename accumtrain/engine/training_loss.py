"""The loss that a training minimises, which may depend on the classes of the data."""

from __future__ import annotations

from functools import partial

from accumtrain.config.schema import Config
from accumtrain.data.labels import class_counts
from accumtrain.data.source import Data
from accumtrain.kinds.losses import LossConfig


def training_loss(config: Config, data: Data) -> LossConfig:
    """The loss with the weights of the classes of `data`. Raises ConfigError if they do not fit."""
    return config.loss.for_training(data.class_names, partial(class_counts, data.train, data.num_classes))
