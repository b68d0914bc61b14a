"""A Keras model, whole or as a chain of segments.

Keras writes batch-norm statistics and seed counters inside the forward pass. In a `keras.StatelessScope` they are
values instead, so that they change at the commit or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.replay import Consume
from accumtrain.backprop.segments import Backward, forward_by_memory
from accumtrain.errors import ConfigError
from accumtrain.models.config import ModelConfig
from accumtrain.models.keras.call import call_stateless, find_batch_norms, join_masks, separate_carried, separate_masks
from accumtrain.models.keras.cuts import SEED, cut_model


class KerasNorm(tf.Module):
    """The moving statistics of one keras.layers.BatchNormalization.

    `momentum` is the share of them that an update keeps. It may be set. `momentum_of_layer` is that of Keras's own
    update.
    """

    def __init__(self, layer: keras.layers.BatchNormalization):
        super().__init__()
        self.momentum = self.momentum_of_layer = float(layer.momentum)
        self.frozen = False
        self.moving_mean, self.moving_variance = layer.moving_mean.value, layer.moving_variance.value
        self.channels = int(self.moving_mean.shape[0])


class KerasSegment:
    """A Keras model or a part of one, from its input to its output: tensors [N, ...] or structures of them.

    Tensors at a cut point that have masks are passed on as `Masked`. It is not a tf.Module, as KerasModel holds the
    variables.

    Args:
        part: a built model.
        memory: `store` or `recompute`.
        norms: id of a BatchNormalization -> its moving statistics. Those of other layers don't change.
        draws: id of the state of a seed generator -> the generator's number in the whole model.
        dtype: dtype of the output, if it is that of the whole model; None for other parts, which keep their own.
        penalised: passes on the losses of layers and weights. Input and output are then pairs of a tensor or structure
            and the sum of these losses so far, a scalar.
        carries: the masks and logits of the whole model's output are outputs, too (`separate_carried`).
    """

    def __init__(
        self,
        part: keras.Model,
        memory: str,
        norms: Mapping[int, KerasNorm],
        draws: Mapping[int, int],
        dtype: tf.DType | None,
        *,
        penalised: bool,
        carries: bool,
    ):
        self.model, self.memory, self.dtype, self.penalised = part, memory, dtype, penalised
        self._carries = carries
        self._moving, self._draws = dict(norms), draws
        self._find_indices()

    def freeze(self, paths: Collection[str]) -> None:
        """Make the weights with these paths constants. A normalisation without other weights becomes one, too."""
        for variable in self.model.trainable_variables:
            if variable.path in paths:
                variable.trainable = False
        for layer in find_batch_norms(self.model):
            if not layer.trainable_variables and any(variable.path in paths for variable in layer.variables):
                layer.trainable = False  # makes Keras compute with its moving statistics
                self._moving.pop(id(layer)).frozen = True
        self._find_indices()

    def _find_indices(self) -> None:
        """Find which of the part's variables are trained, which change in a pass, and which are constants."""
        part, norms, draws = self.model, self._moving, self._draws
        self.trainable_variables = [variable.value for variable in part.trainable_variables]
        indices = {id(variable): index for index, variable in enumerate(part.non_trainable_variables)}
        self._seeds = [(index, draws[key]) for key, index in indices.items() if key in draws]
        self._norms = [
            (norms[id(layer)], indices[id(layer.moving_mean)], indices[id(layer.moving_variance)])
            for layer in find_batch_norms(part)
            if id(layer) in norms
        ]
        changing = {index for index, _ in self._seeds} | {index for _, *both in self._norms for index in both}
        self._constants = sorted(set(indices.values()) - changing)

    def __call__(self, x: Any, mode: Mode) -> Any:
        x, penalty = x if self.penalised else (x, tf.zeros(()))
        state = [tf.convert_to_tensor(variable.value) for variable in self.model.non_trainable_variables]
        if mode.training:
            for index, draw in self._seeds:
                # a seed is a function of (run, update, micro-step, layer), never a counter of calls
                seed = tf.random.experimental.stateless_fold_in(mode.seed, draw)
                state[index] = tf.cast(tf.bitwise.bitwise_and(seed, 0x7FFFFFFF), state[index].dtype)
            for _, mean, variance in self._norms:
                state[mean], state[variance] = tf.zeros_like(state[mean]), tf.zeros_like(state[variance])
        y, new_state, losses = call_stateless(self.model, state, join_masks(x), training=mode.training)
        for index in self._constants:
            if new_state[index] is not state[index]:
                raise ConfigError(
                    f"{self.model.non_trainable_variables[index].path} changes in a forward pass, which only batch "
                    "statistics and seeds may do here; choose another model"
                )
        if mode.recording:
            for norm, mean, variance in self._norms:
                # Keras's moving average, started from zero, is (1 - momentum) times the statistics of the batch
                share = 1.0 - norm.momentum_of_layer or 1.0  # with a momentum of 1 they stay as they are
                mode.record(norm, new_state[mean] / share, new_state[variance] / share)
        if self.dtype is None:
            y = separate_masks(y)
        else:
            y = separate_carried(y) if self._carries else y
            y = tf.nest.map_structure(lambda out: tf.cast(out, self.dtype) if out.dtype.is_floating else out, y)
        return (y, penalty + tf.cast(losses, penalty.dtype)) if self.penalised else y

    def forward(self, x: Any, mode: Mode, consume: Consume) -> tuple[Any, Backward]:
        return forward_by_memory(self, x, mode, consume)


class KerasModel(Model):
    """A whole Keras model, such as one from images [N, H, W, C] to logits [N, classes].

    It holds the variables in Keras's order, so checkpoints and optimizer state do not depend on the segments.

    Args:
        config: with memory `store` the model is one segment. With `recompute` it is the chain that takes the least
            memory; the last segment is stored, as its backward pass follows at once.
        dtype: dtype of the logits.
        moving: layers whose moving statistics change in training; None is all.
        penalised: the output is a pair of that of the model and its losses (see KerasSegment).
        joins_loss: see Model.
        carries: see KerasSegment.
        kept_share: share of all activations that `recompute` may keep: of segments that are stored.

    Raises:
        ConfigError: memory is `recompute`, and the model has no cut points that would save memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        model: keras.Model,
        dtype: tf.DType,
        *,
        moving: Sequence[keras.layers.BatchNormalization] | None = None,
        penalised: bool = False,
        joins_loss: bool = False,
        carries: bool = False,
        kept_share: float = 0.0,
    ):
        norms = {id(layer): KerasNorm(layer) for layer in (find_batch_norms(model) if moving is None else moving)}
        states = [variable for variable in model.non_trainable_variables if variable.name == SEED]
        draws = {id(variable): draw for draw, variable in enumerate(states)}
        parts, policies = [model], ["store"]
        if config.policy != "store":
            parts, kept = cut_model(config.label, model, kept_share)
            policies = ["store" if index in kept else "recompute" for index in range(len(parts) - 1)] + ["store"]
        dtypes = [*(None for _ in parts[:-1]), dtype]
        segments = [
            KerasSegment(part, policy, norms, draws, output, penalised=penalised, carries=carries)
            for part, policy, output in zip(parts, policies, dtypes, strict=True)
        ]
        super().__init__(segments, dtype)
        self._penalised, self.joins_loss = penalised, joins_loss
        self.whole = lambda: model  # a function, as TensorFlow would add the model itself to checkpoints
        self.weights = [variable.value for variable in model.trainable_variables]
        self.normalisations = list(norms.values())
        self.state = [variable.value for variable in model.non_trainable_variables]

    def summary(self) -> None:
        """Print Keras's own summary of the model."""
        self.whole().summary()

    @property
    def named(self) -> dict[str, tf.Variable]:
        """Every variable by Keras's path, such as Conv1/kernel."""
        return {variable.path: variable.value for variable in self.whole().variables if variable.name != SEED}

    @property
    def learnable(self) -> Sequence[tf.Variable]:
        """The weights that Keras trains. Its frozen ones are trainable to TensorFlow."""
        return tuple(self.weights)

    def freeze(self, paths: Iterable[str]) -> None:
        named, paths = self.named, frozenset(paths)
        self._frozen = frozenset(id(named[path]) for path in paths)
        for segment in self.segments:
            cast(KerasSegment, segment).freeze(paths)

    def cast(self, images: Any) -> Any:
        x = super().cast(images)
        return (x, tf.zeros((), self.compute_dtype)) if self._penalised else x
