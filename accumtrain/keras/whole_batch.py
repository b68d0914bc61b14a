"""A loss of the whole batch in the memory of a micro-batch (Gao et al. 2021, arXiv:2101.06983).

The outputs of all micro-batches are computed without a gradient. Then the loss of all outputs is computed, and its
gradient at each. Then each micro-batch is computed again, and back-propagates its part of that gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from accumtrain.console import format_bytes
from accumtrain.engine.programs import DRAWS, find_operations
from accumtrain.engine.replica import join_replicas
from accumtrain.keras.known import Declared, Join, is_of_keras
from accumtrain.keras.split_batch import Split, count_examples, put_examples, run_micro_batches
from accumtrain.keras.split_loss import (
    BatchLoss,
    check_reductions,
    compiled_losses,
    computes_loss,
    count_replicas,
    losses_of_layers,
    record_loss_calls,
)
from accumtrain.models.keras.call import (
    StatelessCall,
    call_in_mode,
    in_a_layer,
    join_carried,
    read_values,
    separate_carried,
)

ASSIGNMENTS = ("Assign", "ResourceScatter")  # beginnings of the names of operations that change a variable
Variables = Sequence[tuple[keras.Variable, tf.Tensor]]


class WholeBatchLoss:
    """The loss of a whole batch, and beside it those that layers add in micro-batches. See `LossShare`.

    Raises:
        ValueError: a loss has reduction=None, or the examples of several replicas can't be brought together.
    """

    def __init__(self, model: keras.Model, declared: Declared) -> None:
        self._model, self._declared = model, declared
        self._losses = [compiled.loss for compiled in compiled_losses(model)]
        check_reductions(self._losses)
        if count_replicas() == 1:
            return
        if computes_loss(model):
            raise ValueError(
                f"compute_loss of {model.name} can't be given the whole batch of {count_replicas()} replicas, because "
                "it is not known if it divides by their number: give the loss to "
                f"model.compile{declared.or_say}"
            )
        if not isinstance(tf.distribute.get_strategy(), tf.distribute.MirroredStrategy):
            raise ValueError(
                f"the outputs of the replicas of {type(tf.distribute.get_strategy()).__name__} are not brought "
                "together, and the loss needs the whole batch: train with replicas of one machine, by "
                f"tf.distribute.MirroredStrategy{declared.or_say}"
            )

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
        with LossCall([*weights, *tracked, *state, *fixed]) as call:
            with tf.GradientTape() as tape:
                tape.watch([trained, [value for _, value in weights]])
                loss = self._compute(x, y, join_carried(join_replicas(outputs)), sample_weight)
                scaled = self._model.optimizer.scale_loss(loss)
            losses = [tf.cast(tracker.result(), keras.config.floatx()) for tracker in trackers]
        call.check_changes(self._model, self._model.trainable_variables, "in its loss, which a run can't keep")
        call.check_layers(self._model, self._declared)
        at_trained, at_weights = tape.gradient(scaled, (trained, [value for _, value in weights]))
        known = iter(at_trained)
        at_outputs = [next(known) if leaf.dtype.is_floating else None for leaf in leaves]
        return BatchLoss(
            tf.cast(loss, keras.config.floatx()),
            losses,
            [None if gradient is None else count_replicas() * gradient for gradient in at_outputs],
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
        """Return the outputs of the batch, as `separate_carried` has them, and the state after it.

        Each micro-batch goes on from the state of the one before.
        """
        model, variables = self._model, [variable for variable, _ in state]
        like = trace_outputs(model, x, self._declared.or_say)

        def add(split: Split, number: tf.Tensor, micro_batch: Any, totals: Any) -> Any:
            values, kept = totals
            with StatelessCall([*zip(variables, values, strict=True), *fixed]) as call:
                outputs = tf.nest.flatten(separate_carried(call_in_mode(model, micro_batch[0], training=True)))
            start = split.start + number * split.size
            kept = [put_examples(tensor, new, start) for tensor, new in zip(kept, outputs, strict=True)]
            return [call.get_current_value(variable) for variable in variables], kept

        totals = [value for _, value in state], zeros_like_outputs(like, x)
        for split in splits:
            totals = run_micro_batches(partial(add, split), (x,), split, totals)
        outputs = tf.nest.pack_sequence_as(like.structured_outputs, totals[1])
        return outputs, [*zip(variables, totals[0], strict=True)]

    def _compute(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """Return the loss without that of layers; on several replicas the share of one, as Keras divides it."""
        model = self._model
        if count_replicas() == 1:
            return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        with record_loss_calls(self._losses, _share_of_replica):
            compiled = model._compile_loss(y, y_pred, sample_weight) if self._losses else tf.zeros(())
        return tf.add_n([compiled, *(model._aggregate_additional_loss(loss) for loss in model.losses)])

    # ---- the second pass ----

    def counted(self, loss: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        return share * loss

    def of_micro_batch(
        self, part: tf.Tensor, x: Any, y: Any, y_pred: Any, sample_weight: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return what the layers of a micro-batch add to the total loss, and a weight of 0 for the loss itself.

        Raises:
            ValueError: see `losses_of_layers`, or the model has a `compute_loss` of its own, which may use them.
        """
        model, total = self._model, tf.zeros((), part.dtype)
        if computes_loss(model) and any(layer._get_own_losses() for layer in model._flatten_layers()):
            raise ValueError(
                f"layers of {model.name} add losses, and its compute_loss can't be given those of the whole batch: "
                f"leave one of the two out{self._declared.or_say}"
            )
        for loss, join in losses_of_layers(model, self._declared):
            total += tf.cast(loss, total.dtype) * (1.0 if join is Join.SUM else part)
        return total, tf.zeros_like(part)


class LossCall(StatelessCall):
    """A call of a loss, which also keeps the names of the layers' weights that layers read in it."""

    def __init__(self, values: Variables = ()) -> None:
        super().__init__(values)
        self._read_in_layers: list[str] = []

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        if tf.as_dtype(variable.dtype).is_floating and in_a_layer():
            self._read_in_layers.append(variable.path)
        return super().get_current_value(variable)

    def check_layers(self, model: keras.Model, declared: Declared) -> None:
        """Raise ValueError if the loss has run layers with weights, and the user did not ask for the whole batch."""
        if self._read_in_layers and declared.loss is None:
            raise ValueError(
                f"the loss of {model.name} runs layers, such as that of {self._read_in_layers[0]}, and computed for "
                'the whole batch it would hold their activations of all examples: say loss="mean" if it is a mean over '
                'examples, loss="sum" if it is a sum over them, or loss="batch" to hold the activations'
            )


def _share_of_replica(loss: keras.losses.Loss, values: tf.Tensor) -> float:
    """Return the factor of a loss's values, as Keras divides means by the replicas, but neither sums nor one number."""
    return 1.0 / count_replicas() if loss.reduction == "sum" or not values.shape.rank else 1.0


def trace_outputs(model: keras.Model, x: Any, or_say: str) -> Any:
    """Return a forward pass of x, nested tensors [N, ...], as a concrete function.

    Masks and logits that Keras attaches to its outputs are outputs of their own (`separate_carried`).

    Args:
        or_say: another remedy, for the end of messages.

    Raises:
        ValueError: it draws random numbers that another pass would not draw again.
    """

    def forward(x: Any) -> Any:
        with StatelessCall():
            return separate_carried(call_in_mode(model, x, training=True))

    with tf.init_scope():
        specs = keras.tree.map_structure(lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), x)
        traced = tf.function(forward, autograph=False).get_concrete_function(specs)
    if drawn := find_operations(traced.graph, DRAWS):
        raise ValueError(
            f"a layer of {model.name} draws random numbers by {drawn[0]}, and the second pass over a micro-batch would "
            f"draw others: draw them from a keras.random.SeedGenerator{or_say}"
        )
    if changed := find_operations(traced.graph, ASSIGNMENTS):
        raise ValueError(
            f"a layer of {model.name} changes a tf.Variable by {changed[0]}, and the second pass over a micro-batch "
            "would find another value: make it a keras.Variable of the layer, by "
            f"add_weight(trainable=False){or_say}"
        )
    for output in tf.nest.flatten(traced.structured_outputs):
        if output is None or output.shape.rank in (None, 0) or output.shape[0] is not None or output.dtype.is_complex:
            raise ValueError(
                f"{model.name} has an output that is not real numbers for each example ({output}), and the loss needs "
                f"the whole batch: return tensors [N, ...] of real numbers alone{or_say}"
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


def describe_own_loss(model: keras.Model, outputs: Any, examples: int | None, function: str = "accumulate") -> str:
    """Return a line for a user who did not ask for the whole batch: its cost, and how to do without it.

    Args:
        outputs: specs of the outputs, [None, ...].
        examples: of a batch; None if it is not known before.
        function: whose argument `loss` is the remedy.
    """
    own = [compiled.loss for compiled in compiled_losses(model) if not is_of_keras(compiled.loss)]
    if computes_loss(model):
        what = f"compute_loss of {model.name} is your own"
    elif own:
        what = f"the loss {own[0].name} is your own"
    else:
        what = f"a loss of {model.name} joins the examples of a batch"
    shapes = [spec.shape[1:] for spec in keras.tree.flatten(outputs)]
    sizes = [tf.as_dtype(spec.dtype).size for spec in keras.tree.flatten(outputs)]
    many, cost = "all examples" if examples is None else f"all {examples} examples", "memory for their outputs"
    if not any(None in shape for shape in shapes):
        each = sum(math.prod(shape) * size for shape, size in zip(shapes, sizes, strict=True))
        total = each if examples is None else each * examples
        cost = f"{format_bytes(total)} for {'the outputs of each' if examples is None else 'their outputs'}"
    word = f'; if it is a mean over examples, say {function}(..., loss="mean")'
    remedy = word if own or computes_loss(model) else ""
    return f"{what}: it is computed for {many} of a batch, with a second forward pass and {cost}{remedy}"
