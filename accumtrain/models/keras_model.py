"""Any classifier of keras.applications as one segment, driven through Keras's `stateless_call`.

Keras writes batch-norm statistics and seed counters inside the forward pass; here every state that a call would
change comes back as a value instead, so that it moves at the commit or not at all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from accumtrain.config import KerasModelConfig
from accumtrain.errors import ConfigError
from accumtrain.models.mode import Mode
from accumtrain.models.segments import Segment

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float64": "float64"}


class KerasNorm(tf.Module):
    """The moving statistics of one keras.layers.BatchNormalization."""

    def __init__(self, layer: keras.layers.BatchNormalization):
        super().__init__()
        self.momentum = float(layer.momentum)
        self.moving_mean, self.moving_variance = layer.moving_mean.value, layer.moving_variance.value
        self.channels = int(self.moving_mean.shape[0])


class KerasSegment(tf.Module):
    """A whole Keras model, images [N, H, W, C] to logits [N, classes]."""

    def __init__(self, model: keras.Model, dtype: tf.DType):
        super().__init__()
        self.memory, self.model, self.dtype = "store", model, dtype
        self.weights = [variable.value for variable in model.trainable_variables]
        places = {variable.path: place for place, variable in enumerate(model.non_trainable_variables)}
        layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
        self.normalisations = [KerasNorm(layer) for layer in layers]
        self._statistics = [(places[layer.moving_mean.path], places[layer.moving_variance.path]) for layer in layers]
        self._seeds = [place for path, place in places.items() if path.endswith("seed_generator_state")]

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        state = [tf.convert_to_tensor(variable.value) for variable in self.model.non_trainable_variables]
        if mode.training:
            for draw, place in enumerate(self._seeds):
                # a seed is a function of (run, update, micro-step, layer), never a counter of calls
                seed = tf.random.experimental.stateless_fold_in(mode.seed, draw)
                state[place] = tf.cast(tf.bitwise.bitwise_and(seed, 0x7FFFFFFF), state[place].dtype)
            for mean, variance in self._statistics:
                state[mean], state[variance] = tf.zeros_like(state[mean]), tf.zeros_like(state[variance])
        weights = [tf.convert_to_tensor(weight) for weight in self.weights]
        logits, after = self.model.stateless_call(weights, state, x, training=mode.training)
        if mode.recording:
            for norm, (mean, variance) in zip(self.normalisations, self._statistics, strict=True):
                # from zero, Keras's moving average leaves (1 - momentum) times the batch's own statistics
                share = 1.0 - norm.momentum
                mode.record(norm, after[mean] / share, after[variance] / share)
        return tf.cast(logits, self.dtype)


@contextmanager
def _dtype_policy(name: str) -> Iterator[None]:
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)


def build_keras(
    config: KerasModelConfig, precision: str, seed: int, image_shape: tuple[int, int, int], classes: int
) -> list[Segment]:
    """keras.applications.<name>(weights=None, ...) with logits instead of probabilities.

    Raises:
        ConfigError: an unknown name, an argument Keras refuses, or an image too small for the model.
    """
    builders = {name: value for name, value in vars(keras.applications).items() if name[0].isupper()}
    if config.name not in builders:
        close = difflib.get_close_matches(str(config.name), builders, n=3, cutoff=0.4)
        raise ConfigError(
            f"model.name={config.name} is not in keras.applications; "
            + (f"did you mean {' or '.join(close)}?" if close else f"choose one of {', '.join(sorted(builders))}")
        )
    fixed = {"weights": None, "input_shape": image_shape, "classes": classes, "classifier_activation": None}
    taken = fixed.keys() & config.args.keys()
    if taken:
        raise ConfigError(f"model.args may not set {', '.join(sorted(taken))}: the data and the loss decide them")
    keras.utils.set_random_seed(seed)
    with _dtype_policy(POLICIES[precision]):
        try:
            model = builders[config.name](**fixed, **config.args)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"keras.applications.{config.name} refuses {image_shape} images: {error}") from error
    return [KerasSegment(model, tf.float64 if precision == "float64" else tf.float32)]
