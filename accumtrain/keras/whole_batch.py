"""A loss of the whole batch in the memory of a micro-batch (Gao et al. 2021, arXiv:2101.06983).

The outputs of all micro-batches are computed without a gradient. The loss and its gradient at them follow, for all at
once. Then each micro-batch is computed again, and goes back from its part of that gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from accumtrain.engine.programs import DRAWS, find_operations
from accumtrain.engine.replica import join_replicas
from accumtrain.keras.split_batch import Split, count_examples, put_examples, run_micro_batches
from accumtrain.keras.split_loss import (
    BatchLoss,
    LossTerms,
    UntriedLossError,
    compiled_losses,
    computes_loss,
    losses_of_layers,
    record_loss_calls,
)
from accumtrain.models.keras.call import StatelessCall, call_in_mode, join_masks, read_values, separate_masks

ASSIGNMENTS = ("Assign", "ResourceScatter")  # how names of operations begin that change a variable
Variables = Sequence[tuple[keras.Variable, tf.Tensor]]


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
        outputs, state = self._forward(x, splits, state, fixed)
        y, sample_weight = join_replicas((y, sample_weight))
        weights = read_values(self._model.trainable_variables)
        trackers = [] if self._model._compile_loss is None else self._model._compile_loss.metrics
        tracked = [(variable, tf.zeros_like(variable)) for tracker in trackers for variable in tracker.variables]
        leaves = tf.nest.flatten(outputs)
        trained = [leaf for leaf in leaves if leaf.dtype.is_floating]
        with StatelessCall([*weights, *tracked, *state, *fixed]) as call:
            with tf.GradientTape() as tape:
                tape.watch([trained, [value for _, value in weights]])
                loss = self._compute(x, y, join_masks(join_replicas(outputs)), sample_weight)
                scaled = self._model.optimizer.scale_loss(loss)
            losses = [tf.cast(tracker.result(), keras.config.floatx()) for tracker in trackers]
        call.check_changes(self._model, self._model.trainable_variables, "in its loss, which a run can't keep")
        at_trained, at_weights = tape.gradient(scaled, (trained, [value for _, value in weights]))
        known = iter(at_trained)
        at_outputs = [next(known) if leaf.dtype.is_floating else None for leaf in leaves]
        return BatchLoss(
            tf.cast(loss, keras.config.floatx()),
            losses,
            [None if gradient is None else _replicas() * gradient for gradient in at_outputs],
            at_weights,
            [
                (variable, call.get_current_value(variable))
                for variable, _ in (*state, *fixed)
                if call.assigns(variable)
            ],
        )

    def _forward(
        self, x: Any, splits: Sequence[Split], state: Variables, fixed: Variables
    ) -> tuple[Any, list[tuple[keras.Variable, tf.Tensor]]]:
        """Return the outputs of the batch, with their masks separate, and the state after it.

        Each micro-batch goes on from the state of the one before.
        """
        model, variables = self._model, [variable for variable, _ in state]
        like = trace_outputs(model, x)

        def add(split: Split, number: tf.Tensor, micro_batch: Any, totals: Any) -> Any:
            values, kept = totals
            with StatelessCall([*zip(variables, values, strict=True), *fixed]) as call:
                outputs = tf.nest.flatten(separate_masks(call_in_mode(model, micro_batch[0], training=True)))
            start = split.start + number * split.size
            kept = [put_examples(tensor, new, start) for tensor, new in zip(kept, outputs, strict=True)]
            return [call.get_current_value(variable) for variable in variables], kept

        totals = [value for _, value in state], zeros_like_outputs(like, x)
        for split in splits:
            totals = run_micro_batches(partial(add, split), (x,), split, totals)
        outputs = tf.nest.pack_sequence_as(like.structured_outputs, totals[1])
        return outputs, [*zip(variables, totals[0], strict=True)]

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


def trace_outputs(model: keras.Model, x: Any) -> Any:
    """Return a forward pass of x, nested tensors [N, ...], as a concrete function, which separates masks.

    Raises:
        ValueError: it draws random numbers that another pass would not draw again.
    """

    def forward(x: Any) -> Any:
        with StatelessCall():
            return separate_masks(call_in_mode(model, x, training=True))

    with tf.init_scope():
        specs = keras.tree.map_structure(lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), x)
        traced = tf.function(forward, autograph=False).get_concrete_function(specs)
    if drawn := find_operations(traced.graph, DRAWS):
        raise ValueError(
            f"a layer of {model.name} draws random numbers by {drawn[0]}, and the second pass over a micro-batch would "
            "draw others: draw them from a keras.random.SeedGenerator"
        )
    if changed := find_operations(traced.graph, ASSIGNMENTS):
        raise ValueError(
            f"a layer of {model.name} changes a tf.Variable by {changed[0]}, and the second pass over a micro-batch "
            "would find another value: make it a keras.Variable of the layer, by add_weight(trainable=False)"
        )
    for output in tf.nest.flatten(traced.structured_outputs):
        if output is None or output.shape.rank in (None, 0) or output.shape[0] is not None or output.dtype.is_complex:
            raise ValueError(
                f"{model.name} has an output that is not real numbers for each example ({output}): with whole_batch "
                "return tensors [N, ...] of real numbers alone"
            )
    return traced


def zeros_like_outputs(forward: Any, x: Any) -> list[tf.Tensor]:
    """Return zeros for the outputs of a function of `trace_outputs`, flat, [N, ...].

    Sizes that are not known before, such as those of a sequence, are those of the first example.
    """
    shapes = [output.shape[1:] for output in tf.nest.flatten(forward.structured_outputs)]
    if not all(shape.is_fully_defined() for shape in shapes):
        first = keras.tree.map_structure(lambda tensor: tensor[:1], x)
        shapes = [tf.shape(output)[1:] for output in tf.nest.flatten(forward(first))]
    dtypes = [output.dtype for output in tf.nest.flatten(forward.structured_outputs)]
    examples = [count_examples(x)]
    return [tf.zeros(tf.concat([examples, shape], 0), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


def _replicas() -> int:
    replicas: int = tf.distribute.get_strategy().num_replicas_in_sync
    return replicas
