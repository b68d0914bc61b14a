"""From an optimizer's configuration to the optimizer."""

from __future__ import annotations

from accumtrain.kinds.table import load
from accumtrain.optim.config import OPTIMIZERS, OptimConfig
from accumtrain.optim.optimizer import Optimizer


def build_optimizer(config: OptimConfig) -> Optimizer:
    """Returns the optimizer of `config.kind`, before `Optimizer.build`.

    Raises:
        ConfigError: keras.optimizers does not know optim.name or optim.args, or accumtrain has a key of its own for it.
    """
    optimizer: Optimizer = load(OPTIMIZERS[config.kind].build)(**config.arguments)
    return optimizer
