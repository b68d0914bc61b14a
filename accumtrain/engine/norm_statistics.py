"""Batch statistics of a whole window: sums over micro-batches and replicas, written to the moving averages once.

Each micro-batch gives mean m and biased variance v per channel. With a shift s that is constant during the window,
the sums of (m - s) and v + (m - s)^2 are linear. So they can be added over micro-batches and reduced over replicas
in any order, and the variance between micro-batches counts. The shift is the moving mean itself: as it approaches
the true mean, the subtraction E[x^2] - E[x]^2 stops losing bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import MovingStatistics


class NormStatistics(tf.Module):
    """Two packed sums over the channels of all normalisations, each [total channels].

    Every normalisation sees the same number of positions per example in each micro-batch. So weighting by examples is
    weighting by elements.
    """

    def __init__(self, norms: Sequence[MovingStatistics], new_sum: Callable[..., tf.Variable]):
        super().__init__()
        self.norms = list(norms)
        self.channels = [norm.channels for norm in self.norms]
        dtype = self.norms[0].moving_mean.dtype if self.norms else tf.float32
        blends = [np.full(norm.channels, 1.0 - norm.momentum) for norm in self.norms]
        self._blend = np.concatenate(blends).astype(dtype.as_numpy_dtype) if blends else None
        self.buffers = [new_sum([sum(self.channels)]) for _ in range(2)] if self.norms else []

    @property
    def variables_(self) -> list[tf.Variable]:
        """The moving statistics that `write` changes."""
        return [variable for norm in self.norms for variable in (norm.moving_mean, norm.moving_variance)]

    def add(self, statistics: Mapping[MovingStatistics, tuple[tf.Tensor, tf.Tensor]], examples: tf.Tensor) -> None:
        """Add one micro-batch: layer -> (mean [C], biased variance [C]), weighted by its examples."""
        if not self.norms:
            return
        means, variances = zip(*(statistics[norm] for norm in self.norms), strict=True)
        offset = tf.concat(means, 0) - tf.concat([norm.moving_mean for norm in self.norms], 0)
        first, second = self.buffers
        first.assign_add(tf.cast(examples * offset, first.dtype))
        second.assign_add(tf.cast(examples * (tf.concat(variances, 0) + tf.square(offset)), second.dtype))

    def write(self, sums: Sequence[tf.Tensor], examples: tf.Tensor) -> None:
        """Update the moving statistics by the reduced sums of a window."""
        if not self.norms:
            return
        offset = sums[0] / examples
        old_variance = tf.concat([norm.moving_variance for norm in self.norms], 0)
        means = tf.split(offset * self._blend, self.channels)
        variances = tf.split((sums[1] / examples - tf.square(offset) - old_variance) * self._blend, self.channels)
        for norm, mean, variance in zip(self.norms, means, variances, strict=True):
            norm.moving_mean.assign_add(mean)
            norm.moving_variance.assign_add(variance)
