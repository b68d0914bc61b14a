"""Settings of TensorFlow that hold for a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accumtrain.errors import ConfigError


def set_once(setter: Callable[..., None], *arguments: Any) -> None:
    """Calls a setter of tf.config, which refuses to change devices once TensorFlow has used them.

    Raises:
        ConfigError: they were set otherwise before.
    """
    try:
        setter(*arguments)
    except RuntimeError as error:
        raise ConfigError(
            "the devices of a process can't change once TensorFlow has used them; for a sweep over devices add "
            "hydra/launcher=joblib, each job then has a process of its own"
        ) from error
