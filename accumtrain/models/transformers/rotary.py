"""Rotary positions (Su et al. 2021, arXiv:2104.09864): products of queries and keys tell how far apart tokens are."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.models.transformers.layers import axis_size


class Rotary:
    """Turns channels i and i + C / 2 of a head of C channels, as a pair, by the angle place * frequencies[i].

    The place of a token is `mode.side["places"]`, int32 [N, T]; without them that in its row.

    Args:
        frequencies: angles for each place, float64 [C / 2].
    """

    def __init__(self, frequencies: np.ndarray):
        self.frequencies = frequencies

    def waves(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
        """Return cosine and sine of each angle, [N or 1, 1, T, C / 2], for heads x [N, heads, T, C].

        They are computed in float64: the angles of late places have too few bits behind the point in float32.
        """
        places = mode.side.get("places")
        places = tf.range(axis_size(x, 2))[tf.newaxis] if places is None else places
        angles = tf.cast(places, tf.float64)[:, tf.newaxis, :, tf.newaxis] * self.frequencies
        dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        return tf.cast(tf.cos(angles), dtype), tf.cast(tf.sin(angles), dtype)


def turn(x: tf.Tensor, cosine: tf.Tensor, sine: tf.Tensor) -> tf.Tensor:
    """Return heads x [N, heads, T, C] turned by the angles of `Rotary.waves`; with -sine they are turned back."""
    first, second = tf.split(tf.cast(x, cosine.dtype), 2, axis=-1)
    return tf.cast(tf.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1), x.dtype)


def frequencies_of(channels: int, theta: float) -> np.ndarray:
    """Return theta^(-2 i / channels) for each pair i of the channels of a head, float64 [channels / 2]."""
    return theta ** -(np.arange(0, channels, 2) / channels)
