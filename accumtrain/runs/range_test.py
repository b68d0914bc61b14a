"""The result of a learning-rate range test: smoothed losses, what rate they suggest, and their picture."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path

from accumtrain.runs.curves import new_figure, save_figure

SMOOTHING = 0.9  # share of the losses before, in the smoothed loss
DIVERGED = 4.0  # times the lowest smoothed loss
LEAST_FALL = 0.02  # share of its beginning that the loss must have fallen by
BELOW_LOWEST = 10.0


@dataclass(frozen=True)
class Point:
    """An update: the smoothed loss is a bias-corrected moving average."""

    rate: float
    loss: float
    smoothed: float


@dataclass
class RangeTest:
    """The updates so far; one whose loss is not finite ends the test and is no point."""

    points: list[Point] = field(default_factory=list)
    diverged: bool = False
    _average: float = 0.0

    def add(self, rate: float, loss: float) -> None:
        """Adds an update, and notes whether the loss has diverged."""
        if not math.isfinite(loss):
            self.diverged = True
            return
        self._average = SMOOTHING * self._average + (1 - SMOOTHING) * loss
        smoothed = self._average / (1 - SMOOTHING ** (len(self.points) + 1))
        self.points.append(Point(rate, loss, smoothed))
        self.diverged = smoothed > DIVERGED * self.lowest.smoothed

    @property
    def lowest(self) -> Point:
        """The point of the lowest smoothed loss; all not a number if there is no point."""
        return min(self.points, key=lambda point: point.smoothed, default=Point(math.nan, math.nan, math.nan))


@dataclass(frozen=True)
class Suggestion:
    """`rate` is None, and so is `steepest`, if the losses suggest none. `reason` says why, in either case."""

    rate: float | None
    reason: str
    steepest: Point | None = None


def suggestion(test: RangeTest) -> Suggestion:
    """The smaller of two rates: where the loss falls fastest, and a tenth of where it is lowest."""
    lowest = test.lowest
    falling = test.points[: test.points.index(lowest) + 1] if test.points else []
    if len(falling) < 3 or lowest.smoothed > (1 - LEAST_FALL) * falling[0].smoothed:
        return Suggestion(
            None,
            "the loss did not fall while the rate rose: lower range_test.low, or raise range_test.updates so that the "
            "rate rises more slowly",
        )
    steepest = max(itertools.pairwise(falling), key=lambda pair: pair[0].smoothed - pair[1].smoothed)[1]
    tenth = lowest.rate / BELOW_LOWEST
    places = f"the loss falls fastest at {steepest.rate:.2g} and is lowest at {lowest.rate:.2g}"
    if steepest.rate < tenth:
        reason = f"{places}; of the first and a tenth of the second, the first is the smaller"
    else:
        reason = f"{places}; a tenth of that is the smaller of the two"
    if not test.diverged:
        reason += "; it has not diverged, so a higher range_test.high may find a higher rate"
    return Suggestion(float(f"{min(steepest.rate, tenth):.2g}"), reason, steepest)


def draw_range_test(test: RangeTest, suggested: Suggestion, title: str, path: Path) -> None:
    """Draws loss against rate. Raises CheckpointError if the file can't be written."""
    figure = new_figure(7, 4.5)
    axis = figure.subplots()
    rates = [point.rate for point in test.points]
    axis.plot(rates, [point.loss for point in test.points], color="C0", lw=0.8, alpha=0.4, label="loss")
    axis.plot(rates, [point.smoothed for point in test.points], color="C0", lw=2, label="smoothed")
    if suggested.rate and suggested.steepest:
        for point, name in ((suggested.steepest, "falls fastest"), (test.lowest, "lowest")):
            axis.plot(point.rate, point.smoothed, "o", label=f"{name}, {point.rate:.2g}")
        axis.axvline(suggested.rate, color="C3", ls="--", label=f"suggested, {suggested.rate:.2g}")
    axis.set(xscale="log", xlabel="learning rate", ylabel="training loss", title=title.replace("$", r"\$"))
    smoothed = [point.smoothed for point in test.points]
    if smoothed:
        axis.set_ylim(bottom=0, top=1.5 * max(smoothed[0], min(smoothed)))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    save_figure(figure, path)
