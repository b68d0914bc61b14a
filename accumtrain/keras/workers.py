"""Several worker processes in Keras 3: TensorFlow's strategy, with the two reductions that `fit` asks of it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

MEAN = ("MEAN", tf.distribute.ReduceOp.MEAN)


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy` under which a Keras 3 model can `fit`, `evaluate` and `predict`.

    Keras 3 reduces a nested batch, to build the model, and scalars along axis 0, which are the metrics that the
    progress bar shows of a batch. TensorFlow's strategy raises ValueError for both. Here the first is reduced tensor by
    tensor, and the second is the mean over the replicas of this worker, without a collective operation: an update then
    costs one. The metrics at the end of an epoch are those of all workers.
    """

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """As TensorFlow's, of nested values too, and of scalars along an axis."""

        def reduced(value: Any) -> tf.Tensor:
            own = self.experimental_local_results(value)
            if axis == 0 and reduce_op in MEAN and own[0].shape.rank == 0:
                return tf.reduce_mean(own, axis=0)
            return super(MultiWorkerMirroredStrategy, self).reduce(reduce_op, value, axis)

        return tf.nest.map_structure(reduced, value)
