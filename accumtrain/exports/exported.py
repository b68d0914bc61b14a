"""What an export holds: a function from pixels of any size to probabilities, and the names of its classes."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.data.preprocess import Preprocess
from accumtrain.engine.predictor import probabilities
from accumtrain.exports.resizing import resize

IMAGES, PROBABILITIES = "images", "probabilities"  # names of the input and the output
CLASS_NAMES = "class_names.json"  # a list, in the files that can hold another


@dataclass(frozen=True)
class Exported:
    """A trained model in float32.

    Attributes:
        shape: height, width and channels of the images that the model takes.
        preprocess: from pixels 0..255 of any size to these images.
    """

    label: str
    model: Model
    preprocess: Preprocess
    shape: tuple[int, ...]
    class_names: list[str]

    @property
    def signature(self) -> tf.TensorSpec:
        """The input: uint8 [N, height, width, channels] of any N, height and width."""
        return tf.TensorSpec([None, None, None, self.shape[-1]], tf.uint8, IMAGES)

    def function(self) -> tf.types.experimental.PolymorphicFunction:
        """The inference, of operations that all formats have: uint8 images to a float32 output [N, classes]."""

        @tf.function(input_signature=[self.signature], autograph=False)
        def infer(images: tf.Tensor) -> dict[str, tf.Tensor]:
            return {PROBABILITIES: probabilities(self.model, self._prepared(images))}

        return infer

    def _prepared(self, images: tf.Tensor) -> tf.Tensor:
        """As `Preprocess.example` and `batch` prepare test images, without an operation of tf.image."""
        height, width, _ = self.shape
        pixels = resize(tf.cast(images, tf.float32), height, width, central=self.preprocess.by_example(training=False))
        mean, std = (tf.constant(values, tf.float32) for values in (self.preprocess.mean, self.preprocess.std))
        return (pixels / self.preprocess.white - mean) / std
