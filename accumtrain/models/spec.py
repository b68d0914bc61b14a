"""What the builder of a model needs to know: images, classes, precision and seed."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow as tf

from accumtrain.models.layers import Initializer

COMPUTE_DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16, "float16": tf.float16, "float64": tf.float64}


@dataclass(frozen=True)
class ModelSpec:
    """What the builder of a model needs to know.

    Attributes:
        image_shape: height, width, channels.
        num_classes: number of logits.
        precision: float32, bfloat16, float16 or float64.
        seed: the seed of the run; initial weights are a pure function of it.
        draws: whether `init` draws kernels. If not, they are zeros, in a model that is restored or only measured: a
            draw takes 1.5 seconds of the processor for RevNet-104.
        init: creates variables with their initial values, in `variable_dtype`.
    """

    image_shape: tuple[int, ...]
    num_classes: int
    precision: str = "float32"
    seed: int = 0
    draws: bool = True
    init: Initializer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "init", Initializer(self.seed, self.variable_dtype, draws=self.draws))

    @property
    def channels(self) -> int:
        """Channels of the images."""
        return self.image_shape[-1]

    @property
    def compute_dtype(self) -> tf.DType:
        """The dtype of convolutions and matrix products."""
        return COMPUTE_DTYPES[self.precision]

    @property
    def variable_dtype(self) -> tf.DType:
        """The dtype of weights, of the loss and of all sums."""
        return tf.float64 if self.compute_dtype == tf.float64 else tf.float32
