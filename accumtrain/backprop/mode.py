"""`Mode`: evaluation, training, or the replay of a training pass; and the random numbers of the examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Protocol

import tensorflow as tf

from accumtrain.backprop.linear_logits import LinearLogits

# From the number of a draw to uniform numbers 0..1, float32 [N], one per example.
Draws = Callable[[int], tf.Tensor]


class MovingStatistics(Protocol):
    """The part of a batch normalisation, of accumtrain or Keras, that a window needs. Statistics are [channels]."""

    channels: int
    momentum: float
    moving_mean: tf.Variable
    moving_variance: tf.Variable


class Mode:
    """The mode of a forward pass, the second argument of every layer. It also collects what the pass finds.

    Attributes:
        training: batch norm uses the statistics of the micro-batch instead of the moving statistics.
        recording: layers call `record`. They do not in a replay, or its statistics would count twice.
        statistics: layer -> (mean [C], biased variance [C]) of this micro-batch.
        replaying: this pass computes an earlier, recorded pass again.
        seed: int32 [2], different for every micro-batch of every replica; for layers that draw random numbers.
        draws: random numbers of each example, the same for every split of the window; None if there are none.
        variance_factors: (height, width, dtype) -> (n - 1) / n for n values of a channel, of an open batch.
        saved: layer -> tensors that its replay may use instead of computing them again.
        inexact: a bool for each reversed stage, true if its reversal gave other bits than the stage began with.
        not_compared: True for each reversed stage whose reversal is not compared.
        reach: the largest magnitude in each stage's streams as a share of their limit, float32 [].
        side: tensors by name that any layer may read beside its input, such as the mask of padded tokens. They are
            constants of the pass, in its replays, too (`Model`).
        frozen: ids of the variables that keep their values. Their gradient is not computed (`Model`).
        cache: the keys and values of earlier tokens, from which attention goes on; None if a pass has all tokens.
        defers_logits: the model may return a `LinearLogits` in place of large logits.
    """

    def __init__(
        self,
        training: bool,
        recording: bool = False,
        seed: tf.Tensor | None = None,
        draws: Draws | None = None,
        *,
        defers_logits: bool = False,
    ):
        self.training, self.recording, self.seed, self.draws = training, recording, seed, draws
        self.defers_logits = defers_logits
        self.cache: Any = None
        self.replaying = False
        self.statistics: dict[MovingStatistics, tuple[tf.Tensor, tf.Tensor]] = {}
        self.variance_factors: dict[tuple[int, int, tf.DType], tf.Tensor] = {}
        self.saved: dict[tf.Module, Any] = {}
        self.inexact: list[tf.Tensor] = []
        self.not_compared: list[tf.Tensor] = []
        self.reach: list[tf.Tensor] = []
        self.side: Mapping[str, tf.Tensor] = {}
        self.frozen: frozenset[int] = frozenset()

    def trains(self, variable: tf.Variable) -> bool:
        """Return whether the gradient of a variable is asked for."""
        return id(variable) not in self.frozen

    def record(self, layer: MovingStatistics, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Store mean [C] and biased variance [C] of a layer. Raise ValueError if they are already there."""
        if layer in self.statistics:
            raise ValueError(f"{layer} recorded its statistics twice in one pass; use one layer for each place")
        self.statistics[layer] = (mean, variance)

    def saved_for_replay(self, layer: tf.Module) -> Any:
        """Return the tensors that the recorded pass has saved, if this is a replay and there are any, else None."""
        return self.saved.get(layer) if self.replaying else None

    @property
    def out_of_range(self) -> list[tf.Tensor]:
        """A bool for each stage, true if its streams have left the range of their numbers."""
        return [reach >= 1 for reach in self.reach]

    def invalidate_out_of_range(self, logits: Any) -> Any:
        """Return the logits, or NaN if a stream has left its range. No update is made of a loss that is not finite."""
        if not self.reach:
            return logits
        if isinstance(logits, LinearLogits):
            return logits.map_hidden(self.invalidate_out_of_range)
        return tf.where(tf.reduce_any(self.out_of_range), tf.constant(float("nan"), logits.dtype), logits)

    def replay(self) -> Mode:
        """Return the mode that computes the same pass again."""
        mode = Mode(self.training, recording=False, seed=self.seed, draws=self.draws)
        mode.replaying, mode.saved, mode.side, mode.frozen = True, self.saved, self.side, self.frozen
        return mode

    def with_side(self, side: Mapping[str, tf.Tensor]) -> Mode:
        """Return the mode of the same pass with tensors that its layers may read. It collects into the same places."""
        mode = copy(self)
        mode.side = side
        return mode

    def with_frozen(self, frozen: frozenset[int]) -> Mode:
        """Return the mode of the same pass with other `frozen` variables. It collects into the same places."""
        mode = copy(self)
        mode.frozen = frozen
        return mode


EVALUATION = Mode(training=False)


def micro_mode(
    seed: int,
    step: tf.Tensor,
    index: tf.Tensor,
    parts: int,
    batch: Mapping[str, tf.Tensor],
    *,
    defers_logits: bool = False,
) -> Mode:
    """Return the mode of the training pass of a micro-batch.

    Its random numbers are functions of run, update and index in the window.

    Args:
        seed: of the run.
        step: updates done, int32 [].
        index: of the micro-batch in the window, over all replicas, int32 [].
        parts: number of micro-batches in the window, over all replicas.
        batch: its `targets` give the number of examples.
        defers_logits: see Mode.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    of_update = fold_in(tf.constant([seed, 0]), step)
    examples = tf.nest.flatten(batch["targets"])[0]
    draws = example_draws(of_update, index, parts, examples.shape[0] or tf.shape(examples)[0])
    return Mode(training=True, recording=True, seed=fold_in(of_update, index), draws=draws, defers_logits=defers_logits)


def example_draws(seed: tf.Tensor, index: tf.Tensor, parts: int, batch: int | tf.Tensor) -> Draws:
    """Return the draws of one micro-batch of a window.

    All numbers of the window are drawn, and those of the micro-batch cut out. So example i of a window gets the same
    number for every number of micro-batches and replicas.

    Args:
        seed: of the run and update, int32 [2].
        index: of the micro-batch in the window, over all replicas, int32 []; those beyond `parts` draw anew.
        parts: number of micro-batches in the window, over all replicas.
        batch: number of examples of the micro-batch.
    """
    examples = (index * batch + tf.range(batch)) % (parts * batch)

    def draw(number: int) -> tf.Tensor:
        fold_in = tf.random.experimental.stateless_fold_in
        of_layer = fold_in(fold_in(seed, number), index // parts)
        return tf.gather(tf.random.stateless_uniform([parts * batch], of_layer), examples)

    return draw
