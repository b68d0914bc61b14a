"""A loss of the whole batch in the memory of a micro-batch (Gao et al. 2021, arXiv:2101.06983).

The outputs of all micro-batches are computed without a gradient. The loss and its gradient at them follow, for all at
once. Then each micro-batch is computed again, and goes back from its part of that gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from accumtrain.keras.split_batch import Split, count_examples, run_micro_batches
from accumtrain.keras.split_loss import (
    BatchLoss,
    LossTerms,
    UntriedLossError,
    compiled_losses,
    computes_loss,
    losses_of_layers,
    record_loss_calls,
)
from accumtrain.models.keras_call import StatelessCall, call_in_mode, join_masks, read_values, separate_masks

Variables = Sequence[tuple[keras.Variable, tf.Tensor]]
DRAWS = ("Random", "Truncated", "Parameterized", "Multinomial", "Stateful", "Rng")  # names of operations begin with it


class WholeBatchLoss:
    """The loss of a whole batch, and beside it those that layers add in micro-batches. See `LossShare`.

    Args:
        terms: of the losses of layers; None if they were not tried on examples.

    Raises:
        ValueError: a loss has reduction=None, or the loss is of the model's own and there are several replicas.
    """

    is_own = False

    def __init__(self, model: keras.Model, terms: LossTerms | None = None) -> None:
        self._model, self._terms = model, terms
        self._losses = [compiled.loss for compiled in compiled_losses(model)]
        if unreduced := [loss.name for loss in self._losses if loss.reduction in (None, "none")]:
            raise ValueError(
                f"the loss {unreduced[0]} has reduction=None, and so no single number to minimise: choose another "
                "reduction"
            )
        if computes_loss(model) and _replicas() > 1:
            raise ValueError(
                f"compute_loss of {model.name} can't be given the whole batch of {_replicas()} replicas, because it is "
                "not known if it divides by their number: give the loss to model.compile"
            )

    def has_own_terms(self) -> bool:
        """Return False: the loss of a whole batch need not be tried."""
        return False

    def kinds(self) -> Sequence[str]:
        return ("mean",)

    def of_examples(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros(()), tf.ones(())

    # ---- the first pass, and the loss ----

    def of_whole_batch(self, batch: Any, splits: Sequence[Split], state: Variables, fixed: Variables) -> BatchLoss:
        """Compute the outputs of all micro-batches, and then the loss and its gradient.

        Args:
            batch: x, y and sample_weight of this replica, nested tensors [N, ...] or None.
            state: variables that a forward pass may change, with their values.
            fixed: variables that each micro-batch finds as they are here.
        """
        x, y, sample_weight = batch
        outputs = self._forward(x, splits, state, fixed)
        found, y, sample_weight = gather_examples((outputs, y, sample_weight))
        weights = read_values(self._model.trainable_variables)
        trackers = [] if self._model._compile_loss is None else self._model._compile_loss.metrics
        tracked = [(variable, tf.zeros_like(variable)) for tracker in trackers for variable in tracker.variables]
        leaves, replicas = tf.nest.flatten(found), _replicas()
        trained = [leaf for leaf in leaves if leaf.dtype.is_floating]
        with StatelessCall([*weights, *tracked]):
            with tf.GradientTape() as tape:
                tape.watch([trained, [value for _, value in weights]])
                loss = self._compute(x, y, join_masks(found), sample_weight)
                scaled = self._model.optimizer.scale_loss(loss)
            losses = [tf.cast(tracker.result(), keras.config.floatx()) for tracker in trackers]
        at_trained, at_weights = tape.gradient(scaled, (trained, [value for _, value in weights]))
        known = iter(at_trained)
        at_outputs = [next(known) if leaf.dtype.is_floating else None for leaf in leaves]
        return BatchLoss(
            tf.cast(loss, keras.config.floatx()),
            losses,
            [None if gradient is None else own_examples(replicas * gradient, x) for gradient in at_outputs],
            at_weights,
        )

    def _forward(self, x: Any, splits: Sequence[Split], state: Variables, fixed: Variables) -> Any:
        """Return the outputs of the batch, with their masks separate. The passes go on from the state of each other."""
        model = self._model
        like = _trace_outputs(model, x)
        kept: list[list[tf.Tensor]] = []
        values = [value for _, value in state]
        for split in splits:

            def add(number: tf.Tensor, micro_batch: Any, totals: Any) -> Any:
                values, arrays = totals
                given = zip((variable for variable, _ in state), values, strict=True)
                with StatelessCall([*given, *fixed]) as call:
                    outputs = tf.nest.flatten(separate_masks(call_in_mode(model, micro_batch[0], training=True)))
                arrays = [array.write(number, output) for array, output in zip(arrays, outputs, strict=True)]
                return [call.get_current_value(variable) for variable, _ in state], arrays

            arrays = [tf.TensorArray(leaf.dtype, split.count, infer_shape=False) for leaf in tf.nest.flatten(like)]
            values, arrays = run_micro_batches(add, (x,), split, (values, arrays))
            kept.append([array.concat() for array in arrays])
        leaves = [tf.concat(parts, 0) for parts in zip(*kept, strict=True)]
        for leaf, spec in zip(leaves, tf.nest.flatten(like), strict=True):
            leaf.set_shape([count_examples(x) if isinstance(count_examples(x), int) else None, *spec.shape[1:]])
        return tf.nest.pack_sequence_as(like, leaves)

    def _compute(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """Return the loss without that of layers; on several replicas the share of one, as Keras divides it.

        Raises:
            ValueError: Keras divides some of the losses by the number of replicas, and others not.
        """
        model, replicas = self._model, _replicas()
        if replicas == 1:
            return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        with record_loss_calls(self._losses, None) as calls:
            compiled = model._compile_loss(y, y_pred, sample_weight) if self._losses else tf.zeros(())
        divided = {loss.reduction != "sum" and loss not in calls.one_number for loss in self._losses}
        if len(divided) > 1:
            raise ValueError(
                "on several replicas Keras divides a mean over examples by their number, but neither a sum nor one "
                "number for a batch: give all losses of the model the same form"
            )
        of_weights = [model._aggregate_additional_loss(loss) for loss in model.losses]
        return tf.add_n([compiled if True in divided else compiled / replicas, *of_weights])

    # ---- the second pass ----

    def counted(self, loss: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        return share * loss

    def of_micro_batch(
        self, part: tf.Tensor, x: Any, y: Any, y_pred: Any, sample_weight: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return what the layers of a micro-batch add to the total loss, and a weight of 0 for the loss itself.

        Raises:
            UntriedLossError: layers add losses, which have to be tried, and were not.
            ValueError: they add another number of losses than when they were tried, or the model has a `compute_loss`
                of its own, which may use them.
        """
        of_layers, total = losses_of_layers(self._model), tf.zeros((), part.dtype)
        if of_layers and computes_loss(self._model):
            raise ValueError(
                f"layers of {self._model.name} add losses, and its compute_loss can't be given those of the whole "
                "batch: leave one of the two out"
            )
        if of_layers and self._terms is None:
            raise UntriedLossError(self._model)
        if self._terms is not None:
            self._terms.check_number(self._model, of_layers)
            for loss, kind in zip(of_layers, self._terms.of_layers, strict=True):
                total += tf.cast(loss, total.dtype) * (1.0 if kind == "sum" else part)
        return total, tf.zeros_like(part)


def _trace_outputs(model: keras.Model, x: Any) -> Any:
    """Return the outputs of a forward pass as specs, with their masks separate.

    Raises:
        ValueError: it draws random numbers that another pass would not draw again.
    """

    def forward(x: Any) -> Any:
        with StatelessCall():
            return separate_masks(call_in_mode(model, x, training=True))

    with tf.init_scope():
        specs = keras.tree.map_structure(lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), x)
        traced = tf.function(forward, autograph=False).get_concrete_function(specs)
    if drawn := [kind for kind in _operations(traced.graph.as_graph_def()) if kind.startswith(DRAWS)]:
        raise ValueError(
            f"a layer of {model.name} draws random numbers by {drawn[0]}, and the second pass over a micro-batch would "
            "draw others: draw them from a keras.random.SeedGenerator"
        )
    return traced.structured_outputs


def _operations(graph: Any) -> Iterator[str]:
    """Return the kinds of all operations in a graph and its functions."""
    yield from (node.op for node in graph.node)
    for function in graph.library.function:
        yield from (node.op for node in function.node_def)


# ---- examples of all replicas ----


def _replicas() -> int:
    replicas: int = tf.distribute.get_strategy().num_replicas_in_sync
    return replicas


def gather_examples(structure: Any) -> Any:
    """Return nested tensors [N, ...] of all replicas, one after the other. None stays None."""
    if _replicas() == 1:
        return structure
    gather = tf.distribute.get_replica_context().all_gather

    def gathered(tensor: tf.Tensor | None) -> tf.Tensor | None:
        if tensor is None or tensor.dtype != tf.bool:
            return None if tensor is None else gather(tensor, axis=0)
        return tf.cast(gather(tf.cast(tensor, tf.uint8), axis=0), tf.bool)

    return tf.nest.map_structure(gathered, structure)


def own_examples(gathered: tf.Tensor, x: Any) -> tf.Tensor:
    """Return the part of this replica, whose examples are `x`."""
    if _replicas() == 1:
        return gathered
    replica = tf.distribute.get_replica_context()
    count = count_examples(x)
    counts = replica.all_gather(tf.reshape(count, [1]), axis=0)
    start = tf.cumsum(counts, exclusive=True)[replica.replica_id_in_sync_group]
    return gathered[start : start + count]
