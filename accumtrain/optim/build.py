"""From the config to the optimizer: a closed registry, a config can name no other code."""

from __future__ import annotations

from collections.abc import Callable

from accumtrain.config import KerasOptimConfig, OptimConfig
from accumtrain.optim.adafactor import Adafactor
from accumtrain.optim.adam import Adam, AdamW
from accumtrain.optim.optimizer import Optimizer
from accumtrain.optim.sgd import SGD

_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "sgd": SGD,
    "adafactor": Adafactor,
}


def build_optimizer(config: OptimConfig) -> Optimizer:
    """Returns the optimizer of `config.kind`, before `Optimizer.build`.

    Raises:
        ConfigError: optim.name or optim.args that keras.optimizers does not know, or that accumtrain does itself.
    """
    if isinstance(config, KerasOptimConfig):
        from accumtrain.optim.keras_adapter import KerasOptimizer  # importing Keras costs a second and 60 MB

        return KerasOptimizer(config)
    return _OPTIMIZERS[config.kind](config)
