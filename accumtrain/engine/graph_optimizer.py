"""Compiled functions with a reduced graph optimizer, which in full takes many seconds for a large graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

# tf.config.optimizer sets these for all threads; here two may compile at the same time
from tensorflow.python.eager.context import FunctionCallOptions, context

from accumtrain.engine.graph_cache import GraphCache
from accumtrain.engine.kept_function import KeptFunction

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
        cache: where its graphs are kept between processes; None traces them in each.
    """

    def __init__(self, function: Callable[..., Any], options: RewriterConfig, cache: GraphCache | None = None):
        self._untraced, self._options = function, options
        self._function = tf.function(function, autograph=False)
        self._name, self._cache = function.__name__, cache
        self._kept: dict[str, KeptFunction | None] = {}  # by signature; None where the trace of this process is used
        self._ahead: Future | None = None

    def __call__(self, *arguments: Any) -> Any:
        self._wait()
        with self._settings():
            kept = None if tf.inside_function() else self._from_cache(*arguments)
            return (kept or self._function)(*arguments)

    def prepare(self, *arguments: Any) -> Any:
        """Takes the graph for arguments like these from the cache, or traces it and keeps it there.

        Returns:
            The traced function; None if the kept one is used in its place.
        """
        self._wait()
        return self._make_ready(*arguments)

    def prepare_ahead(self, *arguments: Any) -> None:
        """Starts `prepare` in another thread. The first call waits for the end of it."""
        thread = ThreadPoolExecutor(1)
        self._ahead = thread.submit(self._make_ready, *arguments)
        thread.shutdown(wait=False)

    def get_concrete_function(self, *arguments: Any) -> Any:
        """The function traced for arguments like these."""
        self._wait()
        return self._trace(*arguments)

    def experimental_get_tracing_count(self) -> int:
        """How often it has been traced."""
        return self._function.experimental_get_tracing_count()

    def _make_ready(self, *arguments: Any) -> Any:
        return self._trace(*arguments) if self._from_cache(*arguments) is None else None

    def _from_cache(self, *arguments: Any) -> KeptFunction | None:
        """The kept function for arguments like these; None where that of `_trace` is to be used.

        Where there is none, it is traced and handed to the cache, which may give back another to use in its place.
        """
        if self._cache is None:
            return None
        signature = _signature(arguments)
        if signature not in self._kept:
            self._kept[signature] = self._cache.find(self._name, signature)
            if self._kept[signature] is None:
                self._kept[signature] = self._cache.keep(self._name, signature, self._trace(*arguments))
                if self._kept[signature] is not None:
                    self._forget_traces()
        return self._kept[signature]

    def _trace(self, *arguments: Any) -> Any:
        with self._settings():  # the functions that it calls get their settings when they are traced
            return self._function.get_concrete_function(*arguments)

    def _forget_traces(self) -> None:
        """Frees what Python keeps of the traced graphs, before compiling the kept one takes memory."""
        self._function = tf.function(self._untraced, autograph=False)
        gc.collect()  # the objects of a graph refer to each other

    def _wait(self) -> None:
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            ahead.result()

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Within this context, this thread compiles and calls functions with these options."""
        before = context().function_call_options
        config = context().config
        config.graph_options.rewrite_options.MergeFrom(self._options)
        context().function_call_options = FunctionCallOptions(before.executor_type, config)
        try:
            yield
        finally:
            context().function_call_options = before


def _signature(arguments: tuple[Any, ...]) -> str:
    """The kinds of tensors and iterators."""
    flat = tf.nest.flatten(arguments)
    return str([each.element_spec if hasattr(each, "element_spec") else (each.shape, each.dtype) for each in flat])
