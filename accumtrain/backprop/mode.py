"""`Mode` of a forward pass, and its random numbers per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import tensorflow as tf

# Random numbers of the examples of a window that do not depend on how the window is split.


Draws = Callable[[int], tf.Tensor]  # from the number of a draw to uniform numbers 0..1, float32 [N], one per example


def example_draws(seed: tf.Tensor, place: tf.Tensor, parts: int, batch: int | tf.Tensor) -> Draws:
    """The draws of one micro-batch of a window.

    All numbers of the window are drawn, and those of the micro-batch cut out. So example i of a window gets the same
    number however many micro-batches and replicas there are.

    Args:
        seed: of the run and update, int32 [2].
        place: which micro-batch of the window it is, over all replicas, int32 []; those beyond `parts` draw anew.
        parts: number of micro-batches in the window, over all replicas.
        batch: number of examples of the micro-batch.
    """
    examples = (place * batch + tf.range(batch)) % (parts * batch)

    def draw(number: int) -> tf.Tensor:
        fold_in = tf.random.experimental.stateless_fold_in
        of_layer = fold_in(fold_in(seed, number), place // parts)
        return tf.gather(tf.random.stateless_uniform([parts * batch], of_layer), examples)

    return draw


# The mode of a forward pass: evaluation, training, or the replay of a training pass.


class MovingStatistics(Protocol):
    """What the window needs of a batch normalisation layer, ours or Keras's. The moving statistics are [channels]."""

    channels: int
    momentum: float
    moving_mean: tf.Variable
    moving_variance: tf.Variable


class Mode:
    """The mode of a forward pass. Every layer gets it as its second argument; it also collects the batch statistics.

    Attributes:
        training: whether batch norm uses the statistics of the micro-batch instead of the moving statistics.
        recording: whether layers call `record`. A replay does not, or its statistics would count twice.
        statistics: layer -> (mean [C], biased variance [C]) of this micro-batch.
        replaying: whether this pass computes an earlier, recorded pass again.
        seed: int32 [2], different for every micro-batch of every replica; for layers that draw random numbers.
        draws: random numbers of each example, which do not depend on how a window is split; None if there are none.
        variance_factors: (height, width, dtype) -> (n - 1) / n for n values of a channel, of an open batch.
        saved: layer -> tensors that its replay may use instead of computing them again.
        inexact: for each reversed stage, a bool: whether its reversal gave other bits than the stage began with.
        unmarked: for each reversed stage whose reversal is not compared, True.
        outside: for each stage, a bool: whether its streams have left the range of their numbers.
    """

    def __init__(
        self, training: bool, recording: bool = False, seed: tf.Tensor | None = None, draws: Draws | None = None
    ):
        self.training, self.recording, self.seed, self.draws = training, recording, seed, draws
        self.replaying = False
        self.statistics: dict[MovingStatistics, tuple[tf.Tensor, tf.Tensor]] = {}
        self.variance_factors: dict[tuple[int, int, tf.DType], tf.Tensor] = {}
        self.saved: dict[tf.Module, Any] = {}
        self.inexact: list[tf.Tensor] = []
        self.unmarked: list[tf.Tensor] = []
        self.outside: list[tf.Tensor] = []

    def record(self, layer: MovingStatistics, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Stores mean [C] and biased variance [C] of a layer. Raises ValueError if they are already there."""
        if layer in self.statistics:
            raise ValueError(f"{layer} recorded its statistics twice in one pass")
        self.statistics[layer] = (mean, variance)

    def saved_for_replay(self, layer: tf.Module) -> Any:
        """The tensors saved by the recorded pass, if this is a replay; None if there are none."""
        return self.saved.get(layer) if self.replaying else None

    def valid(self, logits: tf.Tensor) -> tf.Tensor:
        """The logits, or NaN if a stream has left its range. So the loss is not finite, and no update is made of it."""
        if not self.outside:
            return logits
        return tf.where(tf.reduce_any(self.outside), tf.constant(float("nan"), logits.dtype), logits)

    def replay(self) -> Mode:
        """The mode for computing the same pass again."""
        mode = Mode(self.training, recording=False, seed=self.seed, draws=self.draws)
        mode.replaying, mode.saved = True, self.saved
        return mode


EVALUATION = Mode(training=False)


# The mode of the training pass of a micro-batch, with its random numbers.


def micro_mode(seed: int, step: tf.Tensor, place: tf.Tensor, parts: int, batch: Mapping[str, tf.Tensor]) -> Mode:
    """The mode of the training pass of a micro-batch.

    Args:
        seed: of the run.
        step: updates done, int32 [].
        place: which micro-batch of the window it is, over all replicas, int32 [].
        parts: number of micro-batches in the window, over all replicas.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    of_update = fold_in(tf.constant([seed, 0]), step)
    examples = tf.nest.flatten(batch["label"])[0]
    draws = example_draws(of_update, place, parts, examples.shape[0] or tf.shape(examples)[0])
    return Mode(training=True, recording=True, seed=fold_in(of_update, place), draws=draws)
