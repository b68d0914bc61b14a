"""Losses that compare the examples of a batch, or divide by a number of the whole batch, as users write them."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


def unit(z: Any) -> Any:
    return z / ops.sqrt(ops.sum(z * z, -1, keepdims=True))


def same_label(y: Any, dtype: Any) -> Any:
    """1 for each pair of examples with the same label, else 0: [N, N]."""
    y = ops.reshape(y, (-1,))
    return ops.cast(ops.equal(y[:, None], y[None]), dtype)


def infonce(y: Any, z: Any) -> Any:
    """One value for each example, whose positive is the target's embedding; the others of the batch are negatives."""
    logits = ops.matmul(unit(z), ops.transpose(unit(ops.cast(y, z.dtype)))) / 0.2
    return ops.logsumexp(logits, -1) - ops.diagonal(logits)


def supcon(y: Any, z: Any) -> Any:
    """Khosla et al. 2020, over all pairs of a label: one number."""
    z = unit(z)
    logits = ops.matmul(z, ops.transpose(z)) / 0.1 - 1e9 * ops.eye(ops.shape(z)[0], dtype=z.dtype)
    pairs = same_label(y, z.dtype) - ops.eye(ops.shape(z)[0], dtype=z.dtype)
    return -ops.sum(pairs * (logits - ops.logsumexp(logits, -1, keepdims=True))) / ops.sum(pairs)


def hard_triplet(y: Any, z: Any) -> Any:
    """Hermans et al. 2017: the farthest of the same label, and the nearest of another."""
    distance = ops.sum((z[:, None] - z[None]) ** 2, -1)
    same = same_label(y, z.dtype) > 0
    farthest, nearest = ops.max(ops.where(same, distance, -1e9), 1), ops.min(ops.where(same, 1e9, distance), 1)
    return ops.mean(ops.relu(farthest - nearest + 0.5))


def dice(y: Any, z: Any) -> Any:
    """Over all pixels of the batch: one number."""
    p, y = ops.sigmoid(z), ops.cast(y, z.dtype)
    return 1 - (2 * ops.sum(p * y) + 1) / (ops.sum(p) + ops.sum(y) + 1)


def per_positive(y: Any, z: Any) -> Any:
    """The sum of squares, divided by the number of positives in the batch."""
    y = ops.cast(y, z.dtype)
    return ops.sum((z - y) ** 2) / ops.maximum(ops.sum(y), 1.0)


class Contrast(keras.losses.Loss):
    """One value for each example, which depends on all others."""

    def call(self, y: Any, z: Any) -> Any:
        logits, pairs = ops.matmul(unit(z), ops.transpose(unit(z))) / 0.5, same_label(y, z.dtype)
        return ops.logsumexp(logits, -1) - ops.sum(pairs * logits, -1) / ops.sum(pairs, -1)


class PerPositiveStep(keras.losses.Loss):
    """One value for each step of a sequence, divided by the positive steps of the batch."""

    def call(self, y: Any, p: Any) -> Any:
        return ops.squeeze((y - p) ** 2, -1) / ops.sum(ops.cast(y, p.dtype))


class OneEncoder(keras.Model):
    """One encoder for anchors, positives and hard negatives; each anchor is compared with all of the other two."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.layers.Dense(16, "tanh"), keras.layers.Dense(8)])

    def call(self, x: Any) -> Any:
        return tuple(self.encoder(part) for part in x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        anchors, positives, negatives = map(unit, y_pred)
        logits = ops.matmul(anchors, ops.transpose(ops.concatenate([positives, negatives]))) / 0.05
        return ops.mean(ops.logsumexp(logits, 1) - ops.sum(anchors * positives, -1) / 0.05)


class TwoTowers(keras.Model):
    """Pairs (Radford et al. 2021): two embeddings, compared at a temperature that is learned; weights have a loss."""

    def __init__(self, of_activity: str | None = None) -> None:
        super().__init__()
        self.image = keras.layers.Dense(8, kernel_regularizer="l2", activity_regularizer=of_activity)
        self.text = keras.Sequential([keras.layers.Dense(16, "tanh"), keras.layers.Dense(8)])
        self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")

    def call(self, x: Any) -> Any:
        return {"image": self.image(x[0]), "text": self.text(x[1])}

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        logits = ops.matmul(unit(y_pred["image"]), ops.transpose(unit(y_pred["text"]))) * ops.exp(self.temperature)
        of_images = ops.mean(ops.logsumexp(logits, 1) - ops.diagonal(logits))
        of_texts = ops.mean(ops.logsumexp(logits, 0) - ops.diagonal(logits))
        return (of_images + of_texts) / 2 + sum(self.losses)
