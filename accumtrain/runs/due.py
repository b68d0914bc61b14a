"""Which updates are followed by a log record, an evaluation or a checkpoint."""

from __future__ import annotations

import math

from accumtrain.config.arithmetic import Epochs
from accumtrain.config.schema import Config


class Due:
    """When one run logs, evaluates and saves. `done` is the number of updates done.

    Args:
        total: number of updates of the whole run.
        epochs: of the run.
    """

    def __init__(self, config: Config, total: int, epochs: Epochs):
        self._log_every, self._checkpoint_every = config.log.every, config.checkpoint.every
        self._evaluate_every = config.eval.every
        self._total, self._epochs = total, epochs

    def log(self, done: int) -> bool:
        return done % self._log_every == 0 or done in (1, self._total)

    def checkpoint(self, done: int) -> bool:
        return done % self._checkpoint_every == 0 or done == self._total

    def evaluation(self, done: int) -> bool:
        if done == 0:
            return False
        return done >= self._total or done == self._next_evaluation(done - 1)

    def next(self, done: int) -> int:
        """The first update after `done` that is followed by a log record, an evaluation or a checkpoint."""
        if done == 0:
            return 1
        logs, checkpoints = (done + every - done % every for every in (self._log_every, self._checkpoint_every))
        return min(logs, checkpoints, self._next_evaluation(done), self._total)

    def _next_evaluation(self, done: int) -> int:
        every = self._evaluate_every
        if isinstance(every, int):
            return done + every - done % every
        return self._epochs.update_of(math.floor(self._epochs.at(done)) + 1)  # "epoch"
