"""A Keras layer of which only the input is kept; the rest is computed again when its gradient is needed."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.replay import Consume, replay
from accumtrain.keras.own_gradient import Backward, with_own_gradient
from accumtrain.keras.pure_layer import PureLayer, Values


def recompute(layer: keras.layers.Layer, **kwargs: Any) -> Recompute:
    """Returns a layer that computes what `layer` does, and keeps only its input (Chen et al. 2016, arXiv:1604.06174).

    Unlike tf.recompute_grad this saves memory in graphs, too: the replay waits for the incoming gradient.

    Args:
        layer: a Keras layer or model whose call takes one argument, a tensor or a structure of tensors, beside
            `training` and `mask`.
        kwargs: `name` and `trainable`, as of any Keras layer.

    Raises:
        ValueError: `layer` is no Keras layer.
    """
    return Recompute(layer, **kwargs)


@keras.saving.register_keras_serializable(package="accumtrain")
class Recompute(keras.layers.Wrapper):
    """What `recompute` returns. Input and output are those of `layer`, with its shapes and dtypes."""

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any):
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"layer={layer!r} is no Keras layer; wrap a function in keras.layers.Lambda")
        super().__init__(layer, **{**kwargs, "dtype": layer.variable_dtype, "autocast": False})
        self.supports_masking = layer.supports_masking

    def build(self, input_shape: Any = None) -> None:
        if not self.layer.built:
            dtype = self.layer.compute_dtype
            self.layer(keras.tree.map_shape_structure(lambda shape: keras.KerasTensor(shape, dtype), input_shape))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        takes_mask = mask is not None and "mask" in inspect.signature(self.layer.call).parameters
        values = Values([self.layer])
        call = PureLayer(self.layer, values, training, **({"mask": mask} if takes_mask else {}))
        mode = Mode(training=bool(training))
        structure: Any = None

        def forward(tensors: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor], Backward]:
            nonlocal structure
            structure = call(tf.nest.pack_sequence_as(inputs, tensors), mode)
            outputs = tf.nest.flatten(structure)

            def backward(x: list[tf.Tensor], d_y: list[tf.Tensor], consume: Consume) -> list[tf.Tensor | None]:
                _, d_x, _ = replay(call, tf.nest.pack_sequence_as(inputs, x), d_y, mode, consume)
                return tf.nest.flatten(d_x)

            return outputs, tensors, backward

        outputs = with_own_gradient(forward, tf.nest.flatten(inputs), values, [call])
        values.hand_over(self)
        return tf.nest.pack_sequence_as(structure, outputs)

    def compute_output_spec(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self.layer.compute_output_spec(inputs)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return self.layer.compute_mask(inputs, previous_mask)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {key: value for key, value in config.items() if key != "dtype"}
