"""How a run goes on after an update that is not finite (run.on_nonfinite), and after a change of its length."""

from __future__ import annotations

import math
from collections.abc import Mapping

import tensorflow as tf

from accumtrain.backprop.fixed_point import FixedPoint
from accumtrain.config.schema import Config, RunConfig
from accumtrain.console import warn
from accumtrain.engine.window import Window
from accumtrain.kinds.model_keys import ModelConfig

RATE_FACTOR = 0.5  # on the learning rate, for each rollback
ANOTHER_ORDER = 1_000_003  # added to the seed of the order of examples, for each rollback
LARGEST_SEED = 2**31
WIDER = 4  # bits before the point that a wider range of streams has more


class Recovery:
    """Counts skipped windows and rollbacks of a run; both are saved with its checkpoints.

    Args:
        config: on_nonfinite, max_nonfinite and seed.
        window: for rollbacks, a factor on its rate is added. Create this before the commit is traced.
    """

    def __init__(self, config: RunConfig, window: Window):
        self.mode, self._most, self._seed = config.on_nonfinite, config.max_nonfinite, config.seed
        self.skipped = self.rollbacks = self._in_a_row = 0
        self._loss_scale = window.loss_scale
        self._rate_factor: tf.Variable | None = None
        if self.mode == "rollback":
            schedule, factor = window.schedule, tf.Variable(1.0, trainable=False, name="rate_factor")
            window.schedule = lambda step: schedule(step) * factor
            self._rate_factor = factor

    @property
    def counts(self) -> dict[str, int]:
        """For the manifest of a checkpoint and the summary."""
        return {"skipped": self.skipped, "rollbacks": self.rollbacks}

    @property
    def windows_without_update(self) -> int:
        """All windows that were skipped, those that a loss scale has counted too."""
        return self.skipped + (0 if self._loss_scale is None else int(self._loss_scale.skipped.numpy()))

    @property
    def seed(self) -> int:
        """The seed of the order of examples: run.seed, or another one after each rollback."""
        return (self._seed + self.rollbacks * ANOTHER_ORDER) % LARGEST_SEED

    @property
    def rate_factor(self) -> float:
        return RATE_FACTOR**self.rollbacks

    def restore(self, counts: Mapping[str, int]) -> None:
        """Takes over the counts of a checkpoint."""
        self.skipped = counts["skipped"]
        self.roll_back(counts["rollbacks"])

    def allows(self, *, state_finite: bool) -> bool:
        """Whether the run goes on after an update that is not finite. A state that is not can't be skipped."""
        if self.mode == "skip":
            return state_finite and self._in_a_row < self._most
        return self.mode == "rollback" and self.rollbacks < self._most

    def skip(self, window: Window) -> None:
        """Counts a window that is not finite."""
        self._in_a_row += 1
        self.skip_empty(window)

    def skip_empty(self, window: Window) -> None:
        """Counts a window without an update, unless a loss scale has counted it already."""
        if window.loss_scale is None:
            self.skipped += 1

    def roll_back(self, rollbacks: int) -> None:
        """Sets the number of rollbacks, and the rate that follows from it."""
        self.rollbacks = rollbacks
        if self._rate_factor is not None:
            self._rate_factor.assign(self.rate_factor)

    def after_update(self) -> None:
        self._in_a_row = 0


def out_of_range(model: ModelConfig, window: Window) -> str:
    """What has happened where streams have left the range of their numbers."""
    limit = FixedPoint(model.stream_bits or 0).limit(window.variables_[0].dtype)
    return (
        f"a stream of the network has left the range from -{limit:g} to {limit:g} of numbers with "
        f"model.snap_bits={model.stream_bits}"
    )


def remedy(model: ModelConfig, run: str, *, in_range: bool) -> str:
    """What to do about the run of this name, which has diverged."""
    smaller = "lower optim.lr, lengthen schedule.warmup or set optim.clip_norm=1, under another run.name"
    if in_range:
        return smaller
    bits = model.stream_bits or 0
    fewer = max(bits - WIDER, 1)
    return (
        f"go on with model.snap_bits={fewer} run.name={run} run.resume=force, whose range is {2 ** (bits - fewer)} "
        f"times as large; or {smaller}"
    )


def warn_of_rate_jump(config: Config, total_before: int | None, total: int, done: int) -> None:
    """Warns if the learning rate jumps because the run now ends after another number of updates.

    Args:
        total_before: number of updates that the run was to have; None if unknown.
        done: number of updates done.
    """
    if total_before in (None, total) or done == 0:
        return
    step = tf.constant(done, tf.int64)
    before, now = (float(config.schedule.build(count)(step)) for count in (total_before, total))
    if math.isclose(before, now, rel_tol=0.01):
        return
    warn(
        f"the run was to end after update {total_before}, now it ends after {total}: with schedule="
        f"{config.schedule.kind} update {done + 1} takes {now:.3g} of the learning rate instead of {before:.3g}. "
        f"train.steps={total_before} ends the run as it was planned; run.resume=force schedule=constant with an "
        "optim.lr of your choice goes on evenly"
    )
