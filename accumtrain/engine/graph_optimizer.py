"""How much of TensorFlow's graph optimizer a compiled function gets: all of it costs a long graph many seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# What fuses and lays out convolutions and normalisations stays on.
FUSION_ONLY = dict.fromkeys(
    ("constant_folding", "arithmetic_optimization", "dependency_optimization", "loop_optimization"), False
)
# A commit has nothing to fuse: without the optimizer it starts several times sooner and is no slower.
NOTHING = {"disable_meta_optimizer": True}


class Compiled:
    """A tf.function that is always compiled and called under the same settings of the graph optimizer."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, bool]):
        self._function, self._options = tf.function(function, autograph=False), dict(options)

    def __call__(self, *arguments: Any) -> Any:
        with self._settings():
            return self._function(*arguments)

    def get_concrete_function(self, *arguments: Any) -> Any:
        """The traced function for arguments like these."""
        with self._settings():  # the functions it calls take theirs down when they are traced
            return self._function.get_concrete_function(*arguments)

    def experimental_get_tracing_count(self) -> int:
        """How often it has been traced."""
        return self._function.experimental_get_tracing_count()

    @contextmanager
    def _settings(self) -> Iterator[None]:
        before = tf.config.optimizer.get_experimental_options()
        tf.config.optimizer.set_experimental_options(self._options)
        try:
            yield
        finally:
            defaults = {name: not value for name, value in self._options.items()}
            tf.config.optimizer.set_experimental_options(defaults | before)
