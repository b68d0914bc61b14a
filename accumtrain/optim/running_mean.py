"""Running means of an optimizer: the share that each update keeps, and how far the mean has left its start at 0."""

from __future__ import annotations

import math
import numbers
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tensorflow as tf

from accumtrain.errors import ConfigError
from accumtrain.fields import MEAN_SHARE

LEAST_SHARE = 1e-3  # of a mean with a half-life
LARGEST = sys.float_info.max


@dataclass(frozen=True)
class HalfLife:
    """The half-life of a mean in examples. Each update of B examples keeps 2^(-B / half-life) of the mean.

    So batches of any size forget an example after as many others (Marek et al. 2025, arXiv:2507.07101).

    Attributes:
        value: half of the mean is forgotten after as many examples, or other answers that are told.
        told: the answers that are told of an example.
        key: of the configuration that gives it, for messages.
    """

    value: float
    told: float = 1.0
    key: str = "half_life"

    def share(self, batch: int) -> float:
        """Return what an update of `batch` examples keeps.

        Raises:
            ConfigError: float32 makes 1 of it, so that the mean would never change. Or it is nearly 0.
        """
        told = batch * self.told
        share = 2.0 ** (-told / self.value)
        if share < LEAST_SHARE:
            least = -1.1 * told / math.log2(LEAST_SHARE)
            raise ConfigError(
                f"{self.key}={self.value:g}: a batch of {batch} keeps {share:.2g} of the mean, so that each update "
                f"begins it anew; use {self.key}={least:.2g} at least"
            )
        if share >= MEAN_SHARE.high:
            lost, most = -math.expm1(-told / self.value * math.log(2)), -0.9 * told / math.log2(MEAN_SHARE.high)
            raise ConfigError(
                f"{self.key}={self.value:g}: a batch of {batch} keeps 1 - {lost:.2g} of the mean, and float32 makes 1 "
                f"of it; use {self.key}={most:.1e} at most"
            )
        return share


class RunningMean:
    """A mean of which each update keeps a share: mean = share * mean + (1 - share) * value. It starts at 0.

    Args:
        kept: the share, or a half-life, by which it follows the batch.

    Attributes:
        shares: the stages of the run so far: the updates made before each, and the share that its updates keep.
    """

    def __init__(self, kept: float | HalfLife):
        self._kept = kept
        self.shares: list[tuple[int, float]] = [] if isinstance(kept, HalfLife) else [(0, kept)]

    def follow(self, step: int, batch: int) -> bool:
        """Keep from now on what an update of `batch` examples keeps. Return whether the stages are others than before.

        Args:
            step: updates made.
        """
        share = self._kept.share(batch) if isinstance(self._kept, HalfLife) else self._kept
        shares = [(first, made) for first, made in self.shares if first < step]
        if not shares or shares[-1][1] != share:
            shares.append((step if shares else 0, share))
        changed, self.shares = shares != self.shares, shares
        return changed

    @property
    def follows_batch(self) -> bool:
        return isinstance(self._kept, HalfLife)

    @property
    def share(self) -> float:
        """The share that an update of this stage keeps. Raise ValueError if a half-life follows no batch."""
        if not self.shares:
            raise ValueError(f"{self._kept}: call `follow` of the optimizer with the batch before the first update")
        return self.shares[-1][1]

    def log_product(self, t: tf.Tensor, dtype: tf.DType = tf.float64) -> tf.Tensor:
        """Return the logarithm of the product of the shares of the updates 1 to t, a scalar of the dtype of `t`.

        Args:
            t: an update of this stage, a float scalar.
            dtype: to which the mean's arithmetic rounds each share.
        """
        logs = [(first, _log(float(dtype.as_numpy_dtype(share)))) for first, share in self.shares]
        ended = sum((end - first) * log for (first, log), (end, _) in pairwise(logs))
        first, log = logs[-1]
        return log * t if len(logs) == 1 else ended + log * (t - first)


def _log(share: float) -> float:
    return math.log(share) if share > 0.0 else -math.inf


def beta_2(batch_size: int, *, half_life: float) -> float:
    """Return the share of a mean that an update keeps, such as `beta_2` of Adam, for a half-life in examples.

    It is 2^(-batch_size / half_life) (Marek et al. 2025, arXiv:2507.07101). A share that is known for one batch gives
    the half-life batch_size * log(0.5) / log(share).

    Args:
        batch_size: examples of an update, over all micro-batches and replicas; of language models, tokens.
        half_life: half of the mean is forgotten after as many.

    Raises:
        ValueError: a number is not above 0, or the share is 1 in float32 or nearly 0.
    """
    given: dict[str, Any] = {"batch_size": batch_size, "half_life": half_life}
    for name, number in given.items():
        is_number = isinstance(number, numbers.Real) and not isinstance(number, bool)
        if not (is_number and 0 < number < LARGEST):
            raise ValueError(f"{name}={number!r}: must be a number above 0")
    try:
        return HalfLife(half_life).share(batch_size)
    except ConfigError as error:
        raise ValueError(str(error)) from None
