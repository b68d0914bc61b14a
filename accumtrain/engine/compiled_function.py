"""Compiled functions with a reduced graph optimizer. The full one takes many seconds for a large graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from accumtrain.process.private import FunctionCallOptions, RewriterConfig, context

# The passes that fuse and lay out convolutions and normalisations stay on; one iteration is enough for them.
FUSION_ONLY = RewriterConfig(
    meta_optimizer_iterations=RewriterConfig.ONE,
    constant_folding=RewriterConfig.OFF,
    arithmetic_optimization=RewriterConfig.OFF,
    dependency_optimization=RewriterConfig.OFF,
    loop_optimization=RewriterConfig.OFF,
)
# A commit has nothing to fuse. Without the optimizer it starts several times sooner and runs as fast.
NO_GRAPH_OPTIMIZER = RewriterConfig(disable_meta_optimizer=True)


class CompiledFunction:
    """A tf.function that is always compiled and called under the same settings of the graph optimizer.

    Args:
        eager: a call runs the function itself.
    """

    def __init__(self, function: Callable[..., Any], options: RewriterConfig, *, eager: bool = False):
        self._function, self._options = tf.function(function, autograph=False), options
        self._plain = function if eager else None
        self._ahead: Future | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._plain is not None:
            return self._plain(*arguments)
        self._wait()
        with self._settings():
            return self._function(*arguments)

    def trace_ahead(self, *arguments: Any) -> None:
        """Start to trace the function for arguments like these in another thread. The first call waits for its end."""
        thread = ThreadPoolExecutor(1)
        self._ahead = thread.submit(self._trace, *arguments)
        thread.shutdown(wait=False)

    def get_concrete_function(self, *arguments: Any) -> Any:
        """Return the function traced for arguments like these."""
        self._wait()
        return self._trace(*arguments)

    def experimental_get_tracing_count(self) -> int:
        """Return the number of times that the function has been traced."""
        return self._function.experimental_get_tracing_count()

    def _trace(self, *arguments: Any) -> Any:
        with self._settings():  # the functions that it calls get their settings when they are traced
            return self._function.get_concrete_function(*arguments)

    def _wait(self) -> None:
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            ahead.result()

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Let this thread compile and call functions with these options."""
        before = context().function_call_options
        config = context().config
        config.graph_options.rewrite_options.MergeFrom(self._options)
        context().function_call_options = FunctionCallOptions(before.executor_type, config)
        try:
            yield
        finally:
            context().function_call_options = before
