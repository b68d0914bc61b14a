"""A Keras layer as a function of tensors without side effects, which the engine can replay.

A layer reads and writes its variables while it is called. Here it gets them as tensors, by keras.StatelessScope:
weights, and the state that a forward pass changes, such as moving statistics and the counters of seed generators.
`with_own_gradient` has a tape record a backward function that replays such layers, and nothing of the layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.replay import Consume
from accumtrain.backprop.tracing import after, for_xla, is_for_xla
from accumtrain.models.keras.call import StatelessCall

Tensors = dict[int, tf.Tensor]  # by the id of the Keras variable, or of a tensor that calls share
# (x, shared tensors) -> positional and keyword arguments of a layer
Arguments = Callable[[Any, list[tf.Tensor]], tuple[Sequence[Any], dict[str, Any]]]
# (saved activations, gradients of the outputs, consume) -> gradients of the inputs
Backward = Callable[[list[tf.Tensor], list[tf.Tensor], Consume], list[tf.Tensor | None]]
# inputs -> outputs, the activations to save, and the backward function
Forward = Callable[[list[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor], Backward]]


class LayerVariables:
    """The variables of built layers as tensors, which are read once, for one forward pass.

    Args:
        shared: tensors that several calls take, such as a mask.

    Attributes:
        weights: of the trainable variables, and the shared tensors.
        state: of all other variables, as the calls so far have left them.
        losses: scalars that the calls so far have added.
        assignments: how often the calls so far have assigned each variable, by its id.
    """

    def __init__(self, layers: Iterable[keras.layers.Layer], shared: Iterable[tf.Tensor] = ()):
        self.variables: dict[int, keras.Variable] = {}
        self.weights: Tensors = {}
        self.state: Tensors = {}
        for layer in layers:
            trainable = {id(variable) for variable in layer.trainable_variables}
            for variable in layer.variables:
                key = id(variable)
                if key not in self.variables:
                    self.variables[key] = variable
                    kind = self.weights if key in trainable else self.state
                    kind[key] = tf.convert_to_tensor(variable.value)
        self._shared = list(shared)  # kept alive, as their ids are keys
        self.weights |= {id(tensor): tensor for tensor in self._shared}
        self.losses: list[tf.Tensor] = []
        self.assignments: Counter[int] = Counter()
        self._initial = dict(self.state)

    def set_weights(self, tensors: Sequence[tf.Tensor]) -> None:
        """Replace the values of the weights, in their order."""
        self.weights = dict(zip(self.weights, tensors, strict=True))

    def hand_over(self, owner: keras.layers.Layer) -> None:
        """Assign the state that has changed, and add the losses to `owner`, as Keras would have done in the calls.

        A variable is assigned as often as in the calls, since accumulation refuses a batch norm that is called twice.
        """
        for key, value in self.state.items():
            if value is not self._initial[key]:
                for _ in range(self.assignments[key]):
                    self.variables[key].assign(value)
        for loss in self.losses:
            owner.add_loss(loss)


class PureLayer:
    """One call of a built layer within a forward pass. It is a module of the engine (backprop/pullback.py).

    A call of it is the first pass: it updates the state and the losses of `values`. `pullback` replays that pass from
    the same state, without these effects.

    Args:
        layer: a built layer.
        values: what the calls of one forward pass share.
        training: as Keras resolved it for this pass.
        arguments: makes the layer's arguments of x, a tensor or a structure of tensors, and the shared tensors. It may
            set masks on x.
        results: makes a tensor or a structure of tensors of what the layer returns.
        shared: those of the shared tensors of `values` that this call takes.

    Attributes:
        losses: how many losses the call added.
        loss_gradients: their gradients, to be set before a replay.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        values: LayerVariables,
        training: bool | None,
        arguments: Arguments,
        results: Callable[[Any], Any] = lambda y: y,
        shared: Sequence[tf.Tensor] = (),
    ):
        self.layer, self.values, self.training = layer, values, training
        self.arguments, self.results, self.shared = arguments, results, shared
        self.losses, self.loss_gradients = 0, list[tf.Tensor]()

    def __call__(self, x: Any, mode: Mode) -> Any:
        self._state = {id(variable): self.values.state.get(id(variable)) for variable in self.layer.variables}
        # gradients of all uses of x inside the layer are then summed before others join them, in the order of a replay
        y, call = self._compute(tf.nest.map_structure(tf.identity, x), self.values.weights)
        self.values.state |= call.changed()
        self.values.losses += call.losses
        self.values.assignments += call.assignments
        self.losses = len(call.losses)
        return y

    def pullback(self, x: Any, mode: Mode) -> tuple[Any, Pullback]:
        # without the order, casts of weights would be computed, and kept, from the start
        inputs = tf.nest.flatten(x)
        own = [weight for weight in (*self.layer.variables, *self.shared) if id(weight) in self.values.weights]
        weights = after(inputs, [self.values.weights[id(weight)] for weight in own])
        sources = [tensor for tensor in (*inputs, *weights) if has_gradient(tensor)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y, call = self._compute(x, dict(zip(map(id, own), weights, strict=True)))

        def backward(d_y: Any) -> tuple[Any, Gradients]:
            outputs = zip(tf.nest.flatten(y), tf.nest.flatten(d_y), strict=True)
            pairs = [pair for pair in outputs if has_gradient(pair[0])]
            pairs += zip(call.losses, self.loss_gradients, strict=True)
            targets, upstream = map(list, zip(*pairs, strict=True))
            with StatelessCall() as backward_pass:
                found = iter(tape.gradient(targets, sources, output_gradients=upstream))
            gradients = [_dense(next(found)) if has_gradient(tensor) else None for tensor in (*inputs, *weights)]
            d_x, d_own = _split_at(gradients, len(inputs))
            for weight, gradient in zip(own, d_own, strict=True):
                if gradient is None and backward_pass.reads[id(weight)]:
                    raise ValueError(
                        f"{self.layer.name} has a layer that computes itself again, as keras.remat does, so the "
                        f"gradient of {weight.path} would be lost: leave keras.remat and keras.RematScope out of it"
                    )
            return tf.nest.pack_sequence_as(x, d_x), list(zip(own, d_own, strict=True))

        return y, backward

    def _compute(self, x: Any, weights: Tensors) -> tuple[Any, StatelessCall]:
        """Return the output of the layer and its call, from the state before the first pass."""
        args, kwargs = self.arguments(x, [weights[id(tensor)] for tensor in self.shared])
        variables = self.layer.variables
        call = StatelessCall((v, weights[id(v)] if id(v) in weights else self._state[id(v)]) for v in variables)

        def run() -> Any:
            with call:
                return self.results(self.layer(*args, **kwargs))

        y = _Host(run)(training=self.training)
        trained = [variable for variable in variables if id(variable) in weights]
        call.check_changes(self.layer, trained, "which would happen again when it is recomputed")
        return y, call


class _Host(keras.layers.Layer):
    """A layer that calls `function`, once, as an outer Keras layer calls its inner ones.

    These get its `training`, and no outer autocast. The function is let go of in the call, because a layer of Keras
    refers to itself: it is freed late, and would keep the function's tensors until then.
    """

    def __init__(self, function: Callable[[], Any]):
        super().__init__(dtype="float32", autocast=False, name="host")
        self._function: Callable[[], Any] | None = function
        self.built = True

    def call(self, training: bool | None = None) -> Any:
        function, self._function = self._function, None
        assert function is not None, "it is called once"
        return function()


def has_gradient(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def _dense(gradient: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor | None:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    zeros = tf.zeros(gradient.dense_shape, gradient.dtype)
    return tf.tensor_scatter_nd_add(zeros, gradient.indices[:, tf.newaxis], gradient.values)


# --- a computation that a tape does not record, with a backward function of its own -----------------------------------


def with_own_gradient(
    forward: Forward, inputs: Sequence[tf.Tensor], values: LayerVariables, calls: Sequence[PureLayer]
) -> list[tf.Tensor]:
    """Return the outputs of `forward`. Its inner tensors are freed, and its backward function computes them again.

    Args:
        forward: makes `calls`, which read `values`. Its backward function hands the gradients of their weights to
            `consume`, and must be able to run more than once.

    Raises:
        ValueError: on back-propagation, if a layer reads a trainable variable that is not its own, or is computed again
            by keras.remat.
        NotImplementedError: on a second derivative.
    """
    num_inputs = len(inputs)

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        marker = _marker(*tensors)
        constants, weights = _split_at([tf.stop_gradient(tensor) for tensor in tensors], num_inputs)
        values.set_weights(weights)
        outputs, activations, backward_of_layers = forward(constants)
        num_outputs = len(outputs)  # the closure below would keep the tensors themselves
        traced_for = for_xla if is_for_xla() else nullcontext  # the gradient may be traced elsewhere

        def backward(*d_results: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
            _refuse_foreign(variables)
            with traced_for():
                *once, _ = _differentiable_once(*activations, *weights, marker)
                saved_activations, saved_weights = _split_at(once, len(activations))
                values.set_weights(saved_weights)
                d_outputs, d_losses = _split_at(d_results, num_outputs)
                for call in calls:
                    call.loss_gradients, d_losses = _split_at(d_losses, call.losses)
                sums: dict[int, tf.Tensor] = {}
                d_inputs = backward_of_layers(saved_activations, d_outputs, partial(_add_gradients, sums))
            return [*d_inputs, *map(sums.get, values.weights)]

        return [*outputs, *values.losses], backward

    results = run(*inputs, *values.weights.values())
    outputs, values.losses = _split_at(results, len(results) - len(values.losses))
    return outputs


def _split_at(tensors: Sequence[Any], count: int) -> tuple[list[Any], list[Any]]:
    return list(tensors[:count]), list(tensors[count:])


def _add_gradients(sums: dict[int, tf.Tensor], found: Gradients) -> list[tf.Tensor]:
    """Add gradients to the sums of their variables, which layers may share. Return the sums that have changed."""
    new = {id(variable): gradient for variable, gradient in found if gradient is not None}
    for key, gradient in new.items():
        sums[key] = sums[key] + gradient if key in sums else gradient
    return [sums[key] for key in new]


@tf.custom_gradient
def _marker(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Return a scalar that a tape takes to depend on all of the tensors. It keeps none of them."""
    return tf.zeros([]), _refuse_second_derivative(tensors)


@tf.custom_gradient
def _differentiable_once(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
    """Return the same tensors. Refuse a second derivative, as it would need values that are not kept."""
    return [tf.identity(tensor) for tensor in tensors], _refuse_second_derivative(tensors)


def _refuse_second_derivative(tensors: Sequence[tf.Tensor]) -> Callable:
    eager = tf.executing_eagerly()
    symbolic = () if eager else tensors  # eager ones would stay in memory

    def refuse(*upstream: tf.Tensor | None) -> Any:
        if eager or symbolic[0].graph is tf.compat.v1.get_default_graph():
            raise NotImplementedError(
                "a second derivative (also forward mode) can't be taken through layers whose activations are not kept; "
                "use memory='store', or the layer without recompute"
            )
        # TensorFlow differentiates a function in advance, for a persistent tape or to save it; mostly only zeros arrive
        arrived = [tf.reduce_any(d != 0) for d in upstream if d is not None]
        value = tf.where(tf.reduce_any(arrived), float("nan"), 0.0)
        return [tf.fill(tf.shape(x), tf.cast(value, x.dtype)) if has_gradient(x) else None for x in symbolic]

    return refuse


def _refuse_foreign(variables: Sequence[tf.Variable]) -> None:
    if variables:
        raise ValueError(
            f"the trainable variable {variables[0].name} is used inside a recomputed layer, but is not one of its "
            "weights, so its gradient would be lost; make it with add_weight, or make its layer an attribute"
        )
