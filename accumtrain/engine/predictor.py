"""The most probable classes of images, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION
from accumtrain.backprop.model import Model
from accumtrain.data.pipeline import distributed, eval_batches
from accumtrain.data.source import Data
from accumtrain.engine.loss import Batch, weights


@dataclass(frozen=True)
class Predicted:
    """The answers for n images: their labels int32 [n], and of each the k most probable classes, falling.

    `classes` is int32 [n, k], `probabilities` float32 [n, k].
    """

    labels: np.ndarray
    classes: np.ndarray
    probabilities: np.ndarray


def probabilities(model: Model, images: tf.Tensor) -> tf.Tensor:
    """The probabilities, float32 [N, classes], of prepared images [N, H, W, C]: the softmax of the logits."""
    return tf.cast(tf.nn.softmax(model(images, EVALUATION)), tf.float32)


def predictions(
    model: Model, data: Data, *, batch: int, strategy: tf.distribute.Strategy, top: int
) -> Iterator[Predicted]:
    """The answers for the test images of `data` in their order, as an evaluation reads them.

    Examples that are left out (data.on_error=skip) have no answer.

    Args:
        batch: examples per batch over all replicas.
        top: k, at most the number of classes.
    """

    def answer(examples: Batch) -> tuple[tf.Tensor, ...]:
        values, classes = tf.math.top_k(probabilities(model, examples["image"]), top)
        return examples["label"], weights(examples), classes, values

    @tf.function(autograph=False)
    def answers(examples: Batch) -> tuple[tf.Tensor, ...]:
        parts = [strategy.experimental_local_results(each) for each in strategy.run(answer, args=(examples,))]
        return tuple(tf.concat(each, 0) for each in parts)

    batches = iter(distributed(strategy, lambda share: eval_batches(data, batch=batch, share=share)))
    for _ in range(-(-data.splits["test"].size // batch)):
        labels, weight, classes, values = (each.numpy() for each in answers(next(batches)))
        used = weight > 0
        yield Predicted(labels[used], classes[used], values[used])
