"""Compiled functions with a reduced graph optimizer, which in full takes many seconds for a large graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager.cancellation import CancellationManager

# tf.config.optimizer sets these for all threads; here two may compile at the same time
from tensorflow.python.eager.context import FunctionCallOptions, context

# tf's CancellationManagerContext would cancel the calls of all threads
from tensorflow.python.eager.execute import execute_with_cancellation

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

    def prepare_ahead(self, *arguments: Any, compiles: bool = True) -> None:
        """Starts `prepare` in another thread. The first call waits for the end of it.

        Args:
            compiles: whether TensorFlow then optimizes and compiles the graph there, too.
        """
        self._start(self._compile if compiles else self._make_ready, *arguments)

    def compile_kept_ahead(self, *arguments: Any) -> None:
        """As `prepare_ahead`, but does nothing if no graph is kept for arguments like these."""
        if self._cache is not None:
            self._start(self._compile_kept, *arguments)

    def get_concrete_function(self, *arguments: Any) -> Any:
        """The function traced for arguments like these."""
        self._wait()
        return self._trace(*arguments)

    def experimental_get_tracing_count(self) -> int:
        """How often it has been traced."""
        return self._function.experimental_get_tracing_count()

    def function_for(self, *arguments: Any) -> Any:
        """What a call with arguments like these runs, with its `name` and `captured_inputs`."""
        self._wait()
        return self._function_for(*arguments)

    def _function_for(self, *arguments: Any) -> Any:
        return self._from_cache(*arguments) or self._trace(*arguments)

    def _compile(self, *arguments: Any) -> None:
        """Compiles the graph without running it: TensorFlow does that before it looks whether a call is cancelled."""
        function = self._function_for(*arguments)
        inputs = [*tf.nest.flatten(arguments, expand_composites=True), *function.captured_inputs]
        name, outputs = tf.compat.as_str(function.name), len(function.outputs)
        cancelled = CancellationManager()
        cancelled.start_cancel()
        with self._settings(), suppress(tf.errors.CancelledError):
            attributes = tuple(chain(*context().function_call_options.as_attrs().items()))  # as those of a call
            execute_with_cancellation(name, outputs, inputs, attributes, context(), cancelled)
            raise RuntimeError(f"{self._name} ran although its call was cancelled")

    def _compile_kept(self, *arguments: Any) -> None:
        if self._find(_signature(arguments)) is not None:
            self._compile(*arguments)

    def _make_ready(self, *arguments: Any) -> Any:
        return self._trace(*arguments) if self._from_cache(*arguments) is None else None

    def _from_cache(self, *arguments: Any) -> KeptFunction | None:
        """The kept function for arguments like these; None where that of `_trace` is to be used.

        Where there is none, it is traced and handed to the cache, which may give back another to use in its place.
        """
        if self._cache is None:
            return None
        signature = _signature(arguments)
        if self._find(signature) is None and signature not in self._kept:
            self._kept[signature] = self._cache.keep(self._name, signature, self._trace(*arguments))
            if self._kept[signature] is not None:
                self._forget_traces()
        return self._kept[signature]

    def _find(self, signature: str) -> KeptFunction | None:
        if self._cache is not None and signature not in self._kept:
            found = self._cache.find(self._name, signature)
            if found is not None:
                self._kept[signature] = found
        return self._kept.get(signature)

    def _trace(self, *arguments: Any) -> Any:
        with self._settings():  # the functions that it calls get their settings when they are traced
            return self._function.get_concrete_function(*arguments)

    def _forget_traces(self) -> None:
        """Frees what Python keeps of the traced graphs, before compiling the kept one takes memory."""
        self._function = tf.function(self._untraced, autograph=False)
        gc.collect()  # the objects of a graph refer to each other

    def _start(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Does the work in a thread of its own, after what was started before."""
        before, thread = self._ahead, ThreadPoolExecutor(1)

        def run() -> None:
            if before is not None:
                before.result()
            work(*arguments)

        self._ahead = thread.submit(run)
        thread.shutdown(wait=False)

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
