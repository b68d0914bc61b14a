"""`LinearCrossEntropy`: a dense layer and the cross-entropy of its logits, which are never all in memory."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from accumtrain.backprop.linear_logits import LinearLogits


@keras.saving.register_keras_serializable(package="accumtrain")
def output_as_loss(y_true: Any, losses: Any) -> Any:
    """Return the losses that a model has as its output: the loss to compile it with. Targets are not read."""
    return losses


@keras.saving.register_keras_serializable(package="accumtrain")
class LinearCrossEntropy(keras.layers.Layer):
    """The losses -log softmax(hidden @ kernel + bias)[target], whose logits exist for some rows at a time.

    In the backward pass these logits are computed once more. With a policy of 16 bits products are computed in them,
    logits and losses in float32. `accumulate` knows a model whose output they are, compiled with `output_as_loss`.

    Args:
        units: number of classes.
        label_smoothing: share of the target that all classes have alike, from 0 on and below 1.
        ignore_class: a target whose loss is 0; None: there is none.
        kwargs: those of every Keras layer.

    Raises:
        ValueError: an argument has no such value.
    """

    def __init__(
        self,
        units: int,
        use_bias: bool = True,
        label_smoothing: float = 0.0,
        ignore_class: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**{"autocast": False, **kwargs})
        if isinstance(units, bool) or not isinstance(units, int) or units < 1:
            raise ValueError(f"units={units!r}: must be the number of classes, an integer of at least 1")
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing={label_smoothing!r}: must be at least 0 and below 1")
        self.units, self.use_bias = units, use_bias
        self.label_smoothing, self.ignore_class = label_smoothing, ignore_class

    def build(self, hidden_shape: Any, targets_shape: Any = None, sample_weight_shape: Any = None) -> None:
        self.kernel = self.add_weight(shape=(hidden_shape[-1], self.units), autocast=False, name="kernel")
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.units,), initializer="zeros", autocast=False, name="bias")

    def call(self, hidden: Any, targets: Any, sample_weight: Any = None) -> tf.Tensor:
        """Return the loss of each row.

        Args:
            hidden: floats [N, C] or [N, T, C].
            targets: integers 0..units-1, or `ignore_class`, [N] or [N, T].
            sample_weight: a factor on each loss, of the shape of the targets; None is 1.

        Returns:
            Losses like the targets, in the dtype of the weights.
        """
        targets = tf.cast(targets, tf.int32)
        rows, inner = tf.reshape(targets, [-1]), tf.shape(targets)
        counted = tf.ones_like(rows, tf.bool) if self.ignore_class is None else rows != self.ignore_class
        known = tf.where(counted, rows, 0)
        losses = self._defer(hidden).compute_trained(self._compute_losses, known)
        losses = tf.where(counted, losses, tf.zeros_like(losses))
        if sample_weight is not None:
            losses *= tf.reshape(tf.cast(sample_weight, losses.dtype), [-1])
        return tf.ensure_shape(tf.reshape(losses, inner), targets.shape)

    def compute_logits(self, hidden: Any) -> tf.Tensor:
        """Return all logits, [N, units] or [N, T, units], for predictions."""
        return self._defer(hidden).logits

    def compute_output_spec(self, hidden: Any, targets: Any, sample_weight: Any = None) -> keras.KerasTensor:
        return keras.KerasTensor(targets.shape, self.variable_dtype)

    def get_config(self) -> dict[str, Any]:
        own = ("units", "use_bias", "label_smoothing", "ignore_class")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}

    def _defer(self, hidden: Any) -> LinearLogits:
        dtype = tf.as_dtype(self.variable_dtype)
        kernel, bias = (None if own is None else tf.convert_to_tensor(own) for own in (self.kernel, self.bias))
        hidden, compute_dtype = tf.cast(hidden, dtype), tf.as_dtype(self.compute_dtype)
        return LinearLogits(hidden, kernel, bias, compute_dtype, trains_kernel=self.trainable)

    def _compute_losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        if (
            self.label_smoothing
        ):  # the mean of the losses for all classes differs from that of the target by their logits
            own = tf.gather(logits, targets, batch_dims=1)
            losses += self.label_smoothing * (own - tf.reduce_mean(logits, axis=1))
        return losses
