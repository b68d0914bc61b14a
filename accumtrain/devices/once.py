"""Settings of TensorFlow that can be made only once in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accumtrain.errors import ConfigError


def set_once(setter: Callable[..., None], *arguments: Any) -> None:
    """Calls a setter of tf.config. It can't change devices any more after TensorFlow has used them.

    Raises:
        ConfigError: TensorFlow has used the devices with other settings.
    """
    try:
        setter(*arguments)
    except RuntimeError as error:
        raise ConfigError(
            "the devices of a process can't change once TensorFlow has used them; for a sweep over devices add "
            "hydra/launcher=joblib, each job then has a process of its own"
        ) from error
