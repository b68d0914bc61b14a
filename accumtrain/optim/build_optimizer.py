"""From an optimizer's configuration to the optimizer."""

from __future__ import annotations

from accumtrain.kinds.optimizers import OPTIMIZERS, OptimConfig
from accumtrain.optim.optimizer import Optimizer


def build_optimizer(config: OptimConfig) -> Optimizer:
    """Returns the optimizer of `config.kind`, before `Optimizer.build`.

    Raises:
        ConfigError: optim.name or optim.args that keras.optimizers does not know, or that accumtrain does itself.
    """
    optimizer: Optimizer = OPTIMIZERS[config.kind].builder()(**config.arguments)
    return optimizer
