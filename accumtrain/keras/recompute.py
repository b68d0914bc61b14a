"""A Keras layer of which only the arguments are kept; the rest is computed again when its gradient is needed."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.replay import Consume, replay
from accumtrain.keras.pure_layer import Backward, PureLayer, Values, with_own_gradient
from accumtrain.models.keras_call import flatten_with_masks, parameters_of, with_parameters


def recompute(layer: keras.layers.Layer, **kwargs: Any) -> Recompute:
    """Returns a layer that computes what `layer` does, and keeps only its input (Chen et al. 2016, arXiv:1604.06174).

    Unlike tf.recompute_grad this saves memory in graphs, too: the replay waits for the incoming gradient.

    Args:
        layer: a Keras layer or model. What its call takes, the returned layer takes; masks arrive and come out.
        kwargs: `name` and `trainable`, as of any Keras layer.

    Raises:
        ValueError: `layer` is no Keras layer.
    """
    return Recompute(layer, **kwargs)


@keras.saving.register_keras_serializable(package="accumtrain")
class Recompute(keras.layers.Wrapper):
    """Layer that `recompute` returns. Arguments and results are those of `layer`, with its shapes, dtypes and masks."""

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any):
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"layer={layer!r} is no Keras layer; wrap a function in keras.layers.Lambda")
        self.call = with_parameters(self._run, parameters_of(layer).values())
        super().__init__(layer, **{**kwargs, "dtype": layer.variable_dtype, "autocast": False})
        self.supports_masking = layer.supports_masking

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.layer.built:  # Keras would hand `build` the shape of the first argument only
            with keras.name_scope(self.name, caller=self):
                self.layer(*keras.tree.map_structure(_spec, args), **keras.tree.map_structure(_spec, kwargs))
        return super().__call__(*args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        if not self.layer.built:
            dtype = self.layer.compute_dtype
            self.layer(keras.tree.map_shape_structure(lambda shape: keras.KerasTensor(shape, dtype), input_shape))

    def _run(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        tensors, pack = flatten_with_masks((args, kwargs))
        pack_results: Any = None

        def results(y: Any) -> list[tf.Tensor]:
            nonlocal pack_results
            flat, pack_results = flatten_with_masks(y)
            return flat

        values = Values([self.layer])
        call = PureLayer(self.layer, values, training, lambda x, _: pack(x), results)
        mode = Mode(training=bool(training))

        def forward(tensors: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor], Backward]:
            def backward(x: list[tf.Tensor], d_y: list[tf.Tensor], consume: Consume) -> list[tf.Tensor | None]:
                _, d_x, _ = replay(call, x, d_y, mode, consume)
                return d_x

            return call(tensors, mode), tensors, backward

        outputs = with_own_gradient(forward, tensors, values, [call])
        values.hand_over(self)
        return pack_results(outputs)

    def compute_output_spec(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        return self.layer.compute_output_spec(*args, **kwargs)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return self.layer.compute_mask(inputs, previous_mask)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {key: value for key, value in config.items() if key != "dtype"}


def _spec(argument: Any) -> Any:
    """The shape and dtype of an array or a tensor; anything else as it is."""
    if hasattr(argument, "shape") and hasattr(argument, "dtype"):
        return keras.KerasTensor(argument.shape, keras.backend.standardize_dtype(argument.dtype))
    return argument
