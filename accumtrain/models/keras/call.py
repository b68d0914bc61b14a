"""One call of a Keras layer or model that changes none of its variables.

Keras reads and assigns variables, adds losses and carries masks while it calls a layer. Here variables have values for
the call alone. The changes that the call makes to them are known afterwards, so a call can be replayed, split or left
out.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from accumtrain.errors import ConfigError


class StatelessCall(keras.StatelessScope):
    """A scope in which variables have the given values. It keeps what is assigned to them, and the losses.

    Args:
        values: each variable with its value. All others have their own.

    Attributes:
        losses: those that layers have added.
        assignments: number of assignments to each variable, by its id.
        reads: number of reads of each variable, by its id.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, tf.Tensor]] = ()) -> None:
        super().__init__(values, collect_losses=True)
        self._given = dict(self.state_mapping)
        self.assignments: Counter[int] = Counter()
        self.reads: Counter[int] = Counter()

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        self.assignments[id(update[0])] += 1
        super().add_update(update)

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        self.reads[id(variable)] += 1
        return super().get_current_value(variable)

    def assigns(self, variable: keras.Variable) -> bool:
        """Return whether the call has assigned a variable."""
        return self.assignments[id(variable)] > 0

    def changed(self) -> dict[int, tf.Tensor]:
        """Return the new values, by the id of the variable."""
        return {key: value for key, value in self.state_mapping.items() if value is not self._given.get(key)}

    def check_changes(self, owner: keras.layers.Layer, weights: Iterable[keras.Variable], consequence: str) -> None:
        """Check that only variables with a given value have changed, and no weight.

        Args:
            owner: the layer or model that was called.
            weights: variables that are trained.
            consequence: the end of the message's first part, such as "which can't be split".

        Raises:
            ValueError: another variable has changed.
        """
        changed = self.changed()
        if changed.keys() - self._given.keys():
            raise ValueError(
                f"{owner.name} changes a variable that is not its own during its call, {consequence}: make it an "
                "attribute of the layer that changes it, draw random numbers from a keras.random.SeedGenerator, or "
                "leave out a metric that the layer updates"
            )
        for variable in weights:
            if id(variable) in changed:
                raise ValueError(
                    f"{owner.name} assigns its weight {variable.path} during its call, {consequence}: make it "
                    "trainable=False, or train it alone"
                )


LAYER_CALL = inspect.unwrap(keras.layers.Layer.__call__).__code__


def in_a_layer() -> bool:
    """Return whether a layer is being called, here or by a caller."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not LAYER_CALL:
        frame = frame.f_back
    return frame is not None


def read_values(variables: Iterable[keras.Variable]) -> list[tuple[keras.Variable, tf.Tensor]]:
    """Return each variable with the value that it has now."""
    return [(variable, tf.convert_to_tensor(variable.value)) for variable in variables]


def call_in_mode(model: keras.Model, x: Any, *, training: bool) -> Any:
    """Call a model as Keras's own trainer does."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def call_stateless(
    model: keras.Model, state: Sequence[tf.Tensor], x: Any, *, training: bool
) -> tuple[Any, list[tf.Tensor], tf.Tensor | float]:
    """Call a model as Keras's own trainer does, without a change of its variables.

    Args:
        state: values of its non-trainable variables.

    Returns:
        Its output, the new values of its non-trainable variables, and the sum of the losses of its layers and weights.

    Raises:
        ConfigError: a batch normalisation is called twice, so that its statistics are those of no batch. Or a weight or
            a variable that is not the model's is assigned. Or a loss of a layer is no scalar.
    """
    weights = read_values(model.trainable_variables)
    with StatelessCall([*weights, *zip(model.non_trainable_variables, state, strict=True)]) as call:
        y = call_in_mode(model, x, training=training)
        losses = model.losses
    try:
        call.check_changes(model, model.trainable_variables, "which may change with an update alone")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if any(loss.shape.rank for loss in losses):
        raise ConfigError(
            f"{model.name} has a layer whose add_loss gives one value for each example, which Keras adds up: "
            "give it the mean"
        )
    _check_normalisations(model, call)
    new_state = [call.get_current_value(variable) for variable in model.non_trainable_variables]
    dtype = keras.config.floatx()  # activities may have losses of a lower precision than weights
    return y, new_state, tf.add_n([tf.cast(tf.reduce_sum(loss), dtype) for loss in losses]) if losses else 0.0


def find_batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Find the batch normalisations that are built, those of inner models included, in a fixed order."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    return [layer for layer in layers if layer.built]


def _check_normalisations(model: keras.Model, call: StatelessCall) -> None:
    for layer in find_batch_norms(model):
        assigned, read = call.assignments[id(layer.moving_mean)], call.reads[id(layer.moving_mean)]
        if assigned and getattr(layer, "renorm", False):  # an argument of newer versions of Keras
            raise ConfigError(f"{model.name} has {layer.name}, a BatchNormalization(renorm=True): leave renorm out")
        if assigned > 1 or (assigned and read > 1):
            raise ConfigError(
                f"{model.name} calls its batch normalisation {layer.name} twice in a pass, and its statistics are then "
                "those of no batch: use a layer for each place"
            )


# ---- masks: attributes of tensors, which new tensors of the same values have lost ----


class Masked(NamedTuple):
    """A structure of tensors, and the masks of some of them by their indices in it."""

    tensors: Any
    masks: dict[int, tf.Tensor]


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """Return the mask that Keras carries with a tensor, if there is one."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Let Keras carry the mask with the tensor, in place. Return the tensor."""
    tensor._keras_mask = mask
    return tensor


def separate_masks(structure: Any) -> Any:
    """Return the structure as Masked, or as it is where no tensor has a mask."""
    found = {index: mask_of(tensor) for index, tensor in enumerate(tf.nest.flatten(structure))}
    masks = {index: mask for index, mask in found.items() if mask is not None}
    return Masked(structure, masks) if masks else structure


def join_masks(structure: Any) -> Any:
    """Undo `separate_masks`. The masks are set on the tensors, in place."""
    if not isinstance(structure, Masked):
        return structure
    tensors = tf.nest.flatten(structure.tensors)
    for index, mask in structure.masks.items():
        set_mask(tensors[index], mask)
    return structure.tensors


# ---- logits: the inputs of a softmax or a sigmoid, with which Keras's losses compute ----


class WithLogits(NamedTuple):
    """A structure of tensors, and the logits of some of them by their indices in it."""

    tensors: Any
    logits: dict[int, tf.Tensor]


def separate_carried(structure: Any) -> Any:
    """Return the structure with all that Keras carries with its tensors beside them, as nested tensors."""
    found = {index: getattr(tensor, "_keras_logits", None) for index, tensor in enumerate(tf.nest.flatten(structure))}
    logits = {index: tensor for index, tensor in found.items() if tensor is not None}
    return separate_masks(WithLogits(structure, logits) if logits else structure)


def join_carried(structure: Any) -> Any:
    """Undo `separate_carried`, in place."""
    joined = join_masks(structure)
    if not isinstance(joined, WithLogits):
        return joined
    tensors = tf.nest.flatten(joined.tensors)
    for index, logits in joined.logits.items():
        tensors[index]._keras_logits = logits
    return joined.tensors
