"""The arguments of an optimizer's class obey the types and rules of its keys in a configuration."""

from __future__ import annotations

import numbers
import typing
from collections.abc import Mapping
from types import NoneType
from typing import Any

import numpy as np

from accumtrain.config.convert import in_words
from accumtrain.errors import ConfigError
from accumtrain.kinds.optimizers import OptimConfig
from accumtrain.kinds.values import check_size, constraints_of


def check_arguments(config: type[OptimConfig], arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for the first argument that the key of its name refuses; the key of learning_rate is lr.

    Numbers may be NumPy's.
    """
    hints, constraints = typing.get_type_hints(config), constraints_of(config)
    for name, value in arguments.items():
        key = "lr" if name == "learning_rate" else name
        plain = _plain(hints[key], name, value)
        try:
            for constraint in constraints[key]:
                constraint.check(name, plain)
            if isinstance(plain, int | float):
                check_size(name, plain)
        except ConfigError as error:
            raise ValueError(str(error)) from None


def _plain(hint: Any, name: str, value: Any) -> Any:
    """The value, a number as Python's own. Raises ValueError if it is not of the type `hint`."""
    options = typing.get_args(hint) or (hint,)
    plain = value
    if isinstance(value, bool | np.bool_):
        fits = bool in options
    elif isinstance(value, numbers.Integral):
        plain, fits = int(value), int in options or float in options
    elif isinstance(value, numbers.Real):
        plain, fits = float(value), float in options
    else:
        fits = type(value) in options
    if not fits:
        expected = " or ".join(in_words(option) for option in options if option is not NoneType)
        raise ValueError(f"{name}={value!r}: must be {expected}")
    return plain
