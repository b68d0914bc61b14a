"""A model: segments from images to logits."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.backprop.pullback import Streams
from accumtrain.backprop.segments import Segment


class Model(tf.Module):
    """A chain of segments from images to logits.

    Args:
        segments: the first takes images [N, H, W, C] in `compute_dtype`; the last returns logits [N, classes], float32
            or float64.
        compute_dtype: dtype of convolutions and matrix products.
    """

    joins_loss = False  # whether the loss may look into the last segment, so that one tape records both

    def __init__(self, segments: Sequence[Segment], compute_dtype: tf.DType = tf.float32):
        super().__init__()
        self.segments, self.compute_dtype = list(segments), compute_dtype

    def __call__(self, images: tf.Tensor, mode: Mode = EVALUATION) -> tf.Tensor:
        """The logits [N, classes] of images [N, H, W, C] of any float dtype."""
        x = self.cast(images)
        for segment in self.segments:
            x = segment(x, mode)
        return x

    def cast(self, images: Streams) -> Streams:
        """What the first segment takes: floats in `compute_dtype`, and integers, if there are any, as they are."""
        tensors = [tf.convert_to_tensor(each) for each in tf.nest.flatten(images)]
        floats = [tf.cast(each, self.compute_dtype) if each.dtype.is_floating else each for each in tensors]
        return tf.nest.pack_sequence_as(images, floats)

    @property
    def norms(self) -> list:
        """Every batch normalisation, in a fixed order."""
        return [module for module in self.submodules if hasattr(module, "moving_mean")]

    @property
    def decayed(self) -> list[bool]:
        """For each trainable variable, whether weight decay applies to it: whether its name contains "kernel"."""
        return ["kernel" in variable.name.rsplit("/", 1)[-1] for variable in self.trainable_variables]

    @property
    def params(self) -> int:
        """Number of trainable values."""
        return sum(int(tf.size(variable)) for variable in self.trainable_variables)
