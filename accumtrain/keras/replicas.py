"""One reduction for each update on replicas, and the strategy of several worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from accumtrain.engine.sums import all_reduce_sum
from accumtrain.process.private import needs_no_merge_call

MEAN = ("MEAN", tf.distribute.ReduceOp.MEAN)


def apply_reduced(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[tf.Tensor | None],
    variables: Sequence[keras.Variable],
) -> None:
    """Make the update of the sum of all replicas' gradients. Call it in replica context.

    The sum is one collective operation, and it comes before the optimizer clips or looks for an overflow: Keras itself
    does both with the gradients of each replica.
    """

    def update(reduced: Sequence[tf.Tensor]) -> None:
        known = iter(reduced)
        given = [None if gradient is None else next(known) for gradient in gradients]
        optimizer.apply_gradients(zip(given, variables, strict=True))  # as Keras's own step does

    def update_all(run: Callable[..., Any], reduced: Any) -> None:
        with already_reduced(optimizer):
            run(update, args=(reduced,))

    run_on_all_replicas(update_all, all_reduce_sum([gradient for gradient in gradients if gradient is not None]))


def run_on_all_replicas(function: Callable[..., None], *values: Any) -> None:
    """Call `function(run, *values)`, where `run(replica_function, args=(...))` runs on all replicas.

    A conditional in `function` stands around all replicas, because inside one of their own they could not wait for each
    other.
    """
    if needs_no_merge_call():
        function(lambda replica_function, args=(): replica_function(*args), *values)
    else:
        merge_call = tf.distribute.get_replica_context().merge_call
        merge_call(lambda strategy, *values: function(strategy.extended.call_for_each_replica, *values), args=values)


@contextmanager
def already_reduced(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Keep Keras from adding up gradients over replicas once more, within this context."""
    optimizers = _optimizers_within(optimizer)
    for inner in optimizers:
        vars(inner)["_all_reduce_sum_gradients"] = list
    try:
        yield
    finally:
        for inner in optimizers:
            del vars(inner)["_all_reduce_sum_gradients"]


def _optimizers_within(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Return the optimizer and those that it wraps, each once."""
    found: list[keras.optimizers.Optimizer] = []
    waiting: list[Any] = [optimizer]
    while waiting:
        value = waiting.pop()
        if isinstance(value, keras.optimizers.Optimizer) and not any(value is known for known in found):
            found.append(value)
            waiting += tf.nest.flatten(list(vars(value).values()))
    return found


# --- several workers --------------------------------------------------------------------------------------------------


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy` under which a Keras 3 model can `fit`, `evaluate` and `predict`.

    Keras 3 reduces a nested batch, to build the model, and scalars along axis 0, the metrics that the progress bar
    shows of a batch. TensorFlow's strategy raises ValueError for both. Here the first is reduced tensor by tensor. The
    second is the mean over the replicas of this worker, without a collective operation, so an update costs one. The
    metrics at the end of an epoch are those of all workers.
    """

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Reduce as TensorFlow's does, nested values too, and scalars along an axis."""

        def reduced(value: Any) -> tf.Tensor:
            own = self.experimental_local_results(value)
            if axis == 0 and reduce_op in MEAN and own[0].shape.rank == 0:
                return tf.reduce_mean(own, axis=0)
            return super(MultiWorkerMirroredStrategy, self).reduce(reduce_op, value, axis)

        return tf.nest.map_structure(reduced, value)
