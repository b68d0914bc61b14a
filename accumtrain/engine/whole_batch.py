"""The updates of a loss of the whole batch: two passes over a window (Gao et al. 2021, arXiv:2101.06983)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from accumtrain.engine.compiled_function import FUSION_ONLY, NO_GRAPH_OPTIMIZER, CompiledFunction
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError

# How names of operations begin that draw other random numbers each time.
DRAWS = (
    *("Random", "Truncated", "Parameterized", "Multinomial", "Stateful", "Rng", "Fractional", "AllCandidate"),
    *("Uniform", "LogUniform", "LearnedUnigram", "FixedUnigram", "ThreadUnsafeUnigram"),
)


class WholeBatchStep(Step):
    """See Step. The micro-batches of a window and their outputs are kept until all of them are there.

    The loss of all outputs and its gradient are computed then. Each micro-batch is computed again and goes back from
    its part of that gradient.
    """

    def __init__(self, window: Window, strategy: tf.distribute.Strategy):
        super().__init__(window, strategy)
        self.makes_updates_together = False
        self._traced = False
        self._held: list[tuple[Any, Any]] = []  # micro-batches and their outputs
        self._outputs = CompiledFunction(self._compute_outputs, FUSION_ONLY)
        self._loss = CompiledFunction(self._differentiate, NO_GRAPH_OPTIMIZER)
        self._again = CompiledFunction(self._accumulate_again, FUSION_ONLY)

    def prepare(self, batches: Any) -> None:
        """Do nothing: the first micro-batch is traced when it is there."""

    def drop(self) -> None:
        super().drop()
        self._held.clear()

    def _run_micro_steps(self, batches: Any, count: int) -> None:
        for _ in range(count):
            batch = next(batches)
            if not self._traced:
                self._check_draws(batch)
            self._held.append((batch, self._outputs(batch)))
            if len(self._held) == self._window.micro_steps:
                self._go_back()

    def _run_commit(self) -> dict[str, Any]:
        if self._held:  # the window has fewer micro-steps than usual
            self._go_back()
        return super()._run_commit()

    def _check_draws(self, batch: Any) -> None:
        """Raise ConfigError if the model draws random numbers that the second pass would not draw again."""
        if drawn := find_operations(self._outputs.get_concrete_function(batch).graph, DRAWS):
            raise ConfigError(
                f"the model draws random numbers by {drawn[0]}, and the second pass over a micro-batch would draw "
                "others: draw them from `mode.seed`, or in a Keras layer from a keras.random.SeedGenerator"
                f"{self._window.loss_function.or_say}"
            )
        self._traced = True

    def _go_back(self) -> None:
        batches, outputs = ([*each] for each in zip(*self._held, strict=True))
        self._held.clear()
        gradients = self._loss(batches, outputs)
        del outputs  # the gradient takes its place
        for batch, at_outputs in zip(batches, gradients, strict=True):
            self._again(batch, at_outputs)

    # ---- functions that are compiled ----

    def _compute_outputs(self, batch: Any) -> Any:
        return self._strategy.run(self._window.compute_outputs, args=(batch,))

    def _differentiate(self, batches: list[Any], outputs: list[Any]) -> Any:
        return self._strategy.run(self._window.differentiate, args=(batches, outputs))

    def _accumulate_again(self, batch: Any, at_outputs: Any) -> None:
        self._strategy.run(self._window.accumulate, args=(batch, at_outputs))


def find_operations(graph: tf.Graph, beginnings: tuple[str, ...]) -> list[str]:
    """Return the kinds of the operations in a graph and its functions whose names begin so."""
    return [kind for kind in _operations(graph.as_graph_def()) if kind.startswith(beginnings)]


def _operations(graph: Any) -> Iterator[str]:
    """Return the kinds of all operations in a graph and its functions."""
    yield from (node.op for node in graph.node)
    for function in graph.library.function:
        yield from (node.op for node in function.node_def)
