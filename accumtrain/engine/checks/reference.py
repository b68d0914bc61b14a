"""The reference gradient of job=verify: one tf.GradientTape around the whole model, without our tape and buffers.

It keeps every activation, so it takes the memory of model.memory=store for one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.engine.graph_optimizer import FUSION_ONLY, CompiledFunction
from accumtrain.engine.loss import Batch, PerExample, weighted_sums, weights
from accumtrain.engine.micro_mode import micro_mode


@dataclass(frozen=True)
class Pass:
    """Plain back-propagation of one micro-batch on one replica.

    Attributes:
        loss, examples: sums over the micro-batch.
        gradients: of the summed loss, one per trainable variable.
        statistics: (mean [C], biased variance [C]) of each batch normalisation, in the order of `Model.norms`.
    """

    loss: float
    examples: float
    gradients: list[np.ndarray]
    statistics: list[tuple[np.ndarray, np.ndarray]]


class Reference:
    """Runs the reference on every replica. Create it inside the strategy's scope.

    Args:
        loss: (labels [N], logits [N, classes]) -> losses [N].
        seed: the run's seed; random layers draw the same numbers as in the same micro-step of update 0.
        micro_steps: number of micro-steps in a window.
    """

    def __init__(self, model: Model, loss: PerExample, strategy: tf.distribute.Strategy, seed: int, micro_steps: int):
        self._model, self._loss, self._strategy = model, loss, strategy
        self._seed, self._micro_steps = seed, micro_steps
        # with the options of Step, as others give other bits
        self._run = CompiledFunction(self._differentiate_on_all, FUSION_ONLY)

    def __call__(self, batches: Any, count: int) -> Iterator[Pass]:
        """Yields the passes of the next `count` global micro-batches of the iterator `batches`, replica by replica."""
        for micro_step in range(count):
            results = self._run(batches, tf.constant(micro_step))
            for number in range(self._strategy.num_replicas_in_sync):
                loss, examples, gradients, statistics = tf.nest.map_structure(
                    lambda value, number=number: self._strategy.experimental_local_results(value)[number].numpy(),
                    results,
                )
                yield Pass(float(loss), float(examples), gradients, statistics)

    def _differentiate_on_all(self, batches: Any, micro_step: tf.Tensor) -> Any:
        return self._strategy.run(self._differentiate, args=(batches.get_next(), micro_step))

    def _differentiate(self, batch: Batch, micro_step: tf.Tensor) -> Any:
        replicas = self._strategy.num_replicas_in_sync
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        place = micro_step * replicas + tf.cast(replica, tf.int32)
        mode = micro_mode(self._seed, tf.constant(0), place, self._micro_steps * replicas, batch)
        variables = list(self._model.trainable_variables)
        with tf.GradientTape() as tape:
            (loss,) = weighted_sums([self._loss], self._model(batch["image"], mode), batch)
        found = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [tf.convert_to_tensor(each) for each in found]  # those of embeddings are tf.IndexedSlices
        statistics = [mode.statistics[norm] for norm in self._model.norms]
        return loss, tf.reduce_sum(weights(batch)), gradients, statistics
