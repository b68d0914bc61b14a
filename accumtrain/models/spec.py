"""What a model is built for."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow as tf

from accumtrain.models.layers import Initializer

COMPUTE_DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16, "float16": tf.float16, "float64": tf.float64}


@dataclass(frozen=True)
class ModelSpec:
    """What a model is built for.

    Attributes:
        image_shape: height, width, channels.
        num_classes: of the logits.
        precision: one of the values of the key `precision`.
        seed: the run's; initial weights are a pure function of it.
        init: draws initial weights, in the dtype of all variables.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    precision: str = "float32"
    seed: int = 0
    init: Initializer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "init", Initializer(self.seed, self.variable_dtype))

    @property
    def channels(self) -> int:
        """Of the images."""
        return self.image_shape[-1]

    @property
    def compute_dtype(self) -> tf.DType:
        """Of convolutions and matrix products."""
        return COMPUTE_DTYPES[self.precision]

    @property
    def variable_dtype(self) -> tf.DType:
        """Of weights, of the loss and of all sums."""
        return tf.float64 if self.compute_dtype == tf.float64 else tf.float32
