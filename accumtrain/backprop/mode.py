"""How a forward pass is meant: evaluation, training, or the replay of a training pass."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf


class MovingStatistics(Protocol):
    """What the window needs to know of a batch normalisation, ours or Keras's."""

    channels: int
    momentum: float
    moving_mean: tf.Variable
    moving_variance: tf.Variable


class Mode:
    """Passed through a forward pass; collects batch statistics while recording.

    A replayed segment must not record again, or its statistics would count twice.

    Attributes:
        training: normalise by the statistics of the micro-batch.
        recording: hand those statistics over.
        statistics: layer -> (mean [C], biased variance [C]) of this micro-batch.
        replaying: this pass computes again what one before it has computed.
        seed: int32 [2], different for every micro-batch of every replica; for layers that draw random numbers.
        saved: layer -> what a replay may take over from the recorded pass.
    """

    def __init__(self, training: bool, recording: bool = False, seed: tf.Tensor | None = None):
        self.training, self.recording, self.seed = training, recording, seed
        self.replaying = False
        self.statistics: dict[MovingStatistics, tuple[tf.Tensor, tf.Tensor]] = {}
        self.saved: dict[tf.Module, Any] = {}

    def record(self, layer: MovingStatistics, mean: tf.Tensor, variance: tf.Tensor) -> None:
        if layer in self.statistics:
            raise ValueError(f"{layer} recorded its statistics twice in one pass")
        self.statistics[layer] = (mean, variance)

    def saved_for_replay(self, layer: tf.Module) -> Any:
        """What this pass may take over from the recorded one; None where there is nothing."""
        return self.saved.get(layer) if self.replaying else None

    def replay(self) -> Mode:
        """The mode for computing the same pass again."""
        again = Mode(self.training, recording=False, seed=self.seed)
        again.replaying, again.saved = True, self.saved
        return again


EVALUATION = Mode(training=False)
