"""The compiled parts of an update: the interface of a step's programs, and those of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import tensorflow as tf

from accumtrain.backprop.tracing import for_xla
from accumtrain.engine.compiled_function import FUSION_ONLY, NO_GRAPH_OPTIMIZER, CompiledFunction
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.fields import WEIGHT

SUM = "sum_"  # before the name of a mean: its sum over the examples of all updates of a call

# Beginnings of the names of operations that draw other random numbers each time.
DRAWS = (
    *("Random", "Truncated", "Parameterized", "Multinomial", "Rng", "Fractional", "AllCandidate", "Uniform"),
    *("StatefulRandom", "StatefulStandard", "StatefulTruncated", "StatefulUniform", "LogUniform"),
    *("LearnedUnigram", "FixedUnigram", "ThreadUnsafeUnigram"),
)


class Programs(Protocol):
    """The functions of a window, as they run on all replicas. A `Step` calls them in the order of an update.

    Attributes:
        makes_updates_together: there is a program of several updates.
    """

    makes_updates_together: bool

    def prepare(self, batches: Any) -> Any:
        """Compile what the first update needs. Return the micro-step with its `graph`; None if it is not known yet."""

    def micro_steps(self, batches: Any, count: int) -> None:
        """Make a micro-step with each of the next `count` global micro-batches of an iterator."""

    def commit(self) -> dict[str, Any]:
        """Make the update of the window. Return the scalars of `Window.commit`."""

    def updates(self, batches: Any, count: int) -> dict[str, Any]:
        """Make `count` updates, as `Step.updates` says."""

    def clear(self) -> None:
        """Set the buffers of the window to zero."""

    # ---- of a loss of the whole batch, in the place of micro_steps ----

    def outputs(self, batch: Any) -> Any:
        """Return the outputs of a micro-batch.

        Raises:
            ConfigError: the model draws random numbers that the second pass would not draw again.
        """

    def differentiate(self, batches: list[Any], outputs: list[Any]) -> list[Any]:
        """Add the loss of all outputs to the window. Return its gradient at those of each micro-batch."""

    def again(self, batch: Any, at_outputs: Any) -> None:
        """Compute a micro-batch again, and go back from its part of the gradient."""


class TensorFlowPrograms:
    """See Programs. They run by the current strategy, inside tf.functions. Create them inside its scope.

    Args:
        xla: compile micro-steps with XLA. The commit would gain nothing from it, and TensorFlow's own kernels compute a
            loss of the whole batch.
        eager: run micro-steps without graphs, slowly, so that a debugger and prints work inside layers.
    """

    def __init__(self, window: Window, *, xla: bool = False, eager: bool = False):
        self._window, self._strategy = window, tf.distribute.get_strategy()
        self._eager, self._draws_checked = eager, False
        self.makes_updates_together = not (eager or window.whole_batch)
        on_tpu = isinstance(self._strategy, tf.distribute.TPUStrategy)  # it compiles whatever it runs

        def of_replica(function: Callable[..., Any]) -> Callable[..., Any]:
            traced = for_xla()(function) if xla else function
            return tf.function(traced, autograph=False, jit_compile=True) if xla and not on_tpu else traced

        self._micro_step, self._model = of_replica(window.accumulate), of_replica(window.compute_outputs)
        self._update = for_xla()(window.commit) if on_tpu else window.commit
        self.compiled_micro_steps = CompiledFunction(self._accumulate, FUSION_ONLY, eager=eager)
        self.compiled_commit = CompiledFunction(self._commit, NO_GRAPH_OPTIMIZER)
        # its functions are optimized as parts of it: without fusion some activations would have other bits here
        self.compiled_updates = CompiledFunction(self._updates, FUSION_ONLY)
        self._outputs = CompiledFunction(self._compute_outputs, FUSION_ONLY, eager=eager)
        self._loss = CompiledFunction(self._differentiate, NO_GRAPH_OPTIMIZER, eager=eager)
        self._again = CompiledFunction(self._accumulate_again, FUSION_ONLY, eager=eager)

    def prepare(self, batches: Any) -> Any:
        """Trace the micro-step. The commit is then traced in another thread, while the first micro-steps run."""
        if self._eager or self._window.whole_batch:  # then the first micro-batch is traced when it is there
            return None
        micro_step = self.compiled_micro_steps.get_concrete_function(batches, tf.constant(1))
        self.compiled_commit.trace_ahead()
        return micro_step

    def micro_steps(self, batches: Any, count: int) -> None:
        self.compiled_micro_steps(batches, tf.constant(count))

    def commit(self) -> dict[str, tf.Tensor]:
        scalars: dict[str, tf.Tensor] = self.compiled_commit()
        return scalars

    def updates(self, batches: Any, count: int) -> dict[str, tf.Tensor]:
        scalars: dict[str, tf.Tensor] = self.compiled_updates(batches, tf.constant(count))
        return scalars

    def clear(self) -> None:
        self._window.clear()

    def outputs(self, batch: Any) -> Any:
        if not self._draws_checked:
            graph = self._outputs.get_concrete_function(batch).graph
            check_draws(graph, self._window.loss_function.or_say)
            self._draws_checked = True
        return self._outputs(batch)

    def differentiate(self, batches: list[Any], outputs: list[Any]) -> list[Any]:
        gradients: list[Any] = self._loss(batches, outputs)
        return gradients

    def again(self, batch: Any, at_outputs: Any) -> None:
        self._again(batch, at_outputs)

    # ---- functions that are compiled ----

    def _accumulate(self, batches: Any, count: tf.Tensor) -> None:
        run_on_batches(self._strategy, batches, count, self._micro_step)

    def _commit(self) -> dict[str, tf.Tensor]:
        results = self._strategy.run(self._update)
        local = {name: self._strategy.experimental_local_results(value) for name, value in results.items()}
        scalars = {name: values[0] for name, values in local.items()}
        # each replica looks at its own copy
        return scalars | {"state_finite": tf.reduce_all(tf.stack(local["state_finite"]))}

    def _updates(self, batches: Any, count: tf.Tensor) -> dict[str, tf.Tensor]:
        names = ("loss", *self._window.metrics)
        self.compiled_micro_steps.get_concrete_function(batches, tf.constant(1))  # finds the variables for the commit

        def body(
            done: tf.Tensor, update: dict[str, tf.Tensor], sums: dict[str, tf.Tensor]
        ) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
            self.compiled_micro_steps(batches, tf.constant(self._window.micro_steps))
            before, update = update, self.compiled_commit()
            for name in ("exact", "compared"):  # streams out of range end the loop: that update is not finite
                update[name] &= before[name]
            weight = tf.cast(update[WEIGHT], tf.float64)  # a sum of many updates is rounded less
            added = {WEIGHT: weight, **{name: tf.cast(update[name], tf.float64) * weight for name in names}}
            return done + 1, update, {name: total + added[name] for name, total in sums.items()}

        scalars = self.compiled_commit.get_concrete_function().structured_outputs
        # before the first update every bool is true
        start = {name: tf.ones(scalar.shape, scalar.dtype) for name, scalar in scalars.items()}
        nothing = dict.fromkeys((WEIGHT, *names), tf.zeros([], tf.float64))
        _, last, sums = tf.while_loop(
            lambda done, update, sums: (done < count) & update["finite"] & update["state_finite"],
            body,
            (tf.constant(0), start, nothing),
            parallel_iterations=1,
        )
        return last | {f"{SUM}{name}": total for name, total in sums.items()}

    def _compute_outputs(self, batch: Any) -> Any:
        return self._strategy.run(self._model, args=(batch,))

    def _differentiate(self, batches: list[Any], outputs: list[Any]) -> Any:
        return self._strategy.run(self._window.differentiate, args=(batches, outputs))

    def _accumulate_again(self, batch: Any, at_outputs: Any) -> None:
        self._strategy.run(self._micro_step, args=(batch, at_outputs))


def run_on_batches(
    strategy: tf.distribute.Strategy, batches: Any, count: tf.Tensor, function: Callable[[Any], None]
) -> None:
    """Run a replica function on each of the next `count` batches of an iterator, one after the other."""

    def body(done: tf.Tensor) -> tuple[tf.Tensor]:
        strategy.run(function, args=(batches.get_next(),))
        return (done + 1,)

    # parallel iterations would hold the activations of several micro-batches
    tf.while_loop(lambda done: done < count, body, [tf.constant(0)], parallel_iterations=1)


def check_draws(graph: tf.Graph, or_say: str) -> None:
    """Raise ConfigError if the model in a graph draws random numbers that another pass would not draw again.

    Args:
        or_say: see `WholeBatch`.
    """
    if drawn := find_operations(graph, DRAWS):
        raise ConfigError(
            f"the model draws random numbers by {drawn[0]}, and the second pass over a micro-batch would draw "
            "others: draw them from `mode.seed`, or in a Keras layer from a keras.random.SeedGenerator"
            f"{or_say}"
        )


def find_operations(graph: tf.Graph, beginnings: tuple[str, ...]) -> list[str]:
    """Return the kinds of the operations in a graph and its functions whose names begin so."""
    return [kind for kind in _operations(graph.as_graph_def()) if kind.startswith(beginnings)]


def _operations(graph: Any) -> Iterator[str]:
    """Return the kinds of all operations in a graph and its functions."""
    yield from (node.op for node in graph.node)
    for function in graph.library.function:
        yield from (node.op for node in function.node_def)
