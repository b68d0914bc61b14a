"""The arguments of an optimizer's class obey the rules of its keys in a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accumtrain.errors import ConfigError
from accumtrain.kinds.optimizers import OptimConfig
from accumtrain.kinds.values import check_size, constraints_of


def check_arguments(config: type[OptimConfig], arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for the first argument that the key of its name refuses; the key of learning_rate is lr."""
    constraints = constraints_of(config)
    for name, value in arguments.items():
        try:
            for constraint in constraints["lr" if name == "learning_rate" else name]:
                constraint.check(name, value)
            if isinstance(value, int | float):
                check_size(name, value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
