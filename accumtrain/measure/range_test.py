"""job=lr: a learning-rate range test (Smith 2017, arXiv:1506.01186). The rate rises until the loss diverges."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import format_things, say, table
from accumtrain.data.pipeline import make_train_stream
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve_devices
from accumtrain.errors import ConfigError
from accumtrain.optim.schedules import exponential_schedule
from accumtrain.progress import counting
from accumtrain.report.pictures import new_figure, save_figure, without_math
from accumtrain.runs.folder import job_folder
from accumtrain.tasks.objective import Objective, open_objective
from accumtrain.train.build import check_micro_batch
from accumtrain.train.tell.remedies import explain_errors
from accumtrain.train.weights import window_with_weights

PICTURE = "lr.png"
ROWS = 12  # of the table, at most: evenly spaced points
SMOOTHING = 0.9  # share of the losses before, in the smoothed loss
DIVERGED = 4.0  # times the lowest smoothed loss
LEAST_FALL = 0.02  # share of its beginning that the loss must have fallen by
BELOW_LOWEST = 10.0


def find_learning_rate(config: Config) -> dict[str, Any]:
    """Print the suggested rate, draw lr.png and return the content of lr.json. Nothing that is trained is kept.

    Raises:
        ConfigError: the optimizer computes its own rate.
    """
    if config.optim.lr is None:
        raise ConfigError(
            "optim.lr=null: the optimizer computes its own rate from the weights, so there is none to try; give any "
            "number, such as optim.lr=0.05, to test rates for it"
        )
    devices = resolve_devices(config.device)
    objective = open_objective(config)
    with explain_errors(config, objective.stored, devices.replicas):
        test = _raise_rate(config, objective, devices)
    suggested = suggest_rate(test)
    path = job_folder(config) / PICTURE
    title = f"{config.model.label} on {config.data.label}, {config.optim.label}, batch {config.batch_size}"
    draw_range_test(test, suggested, title, path)
    stride = max(1, -(-len(test.points) // ROWS))
    shown = [(f"{point.rate:.2e}", f"{point.loss:.4f}", f"{point.smoothed:.4f}") for point in test.points[::stride]]
    table(title, ("rate", "loss", "smoothed"), shown)
    say(f"suggested: optim.lr={suggested.rate:.2g}" if suggested.rate else "no rate is suggested")
    say(f"{suggested.reason}; the picture is {path}")
    return {
        "status": "completed",
        "suggested": suggested.rate,
        "reason": suggested.reason,
        "steepest": suggested.steepest and asdict(suggested.steepest),
        "lowest": asdict(test.lowest),
        "diverged": test.diverged,
        "updates": len(test.points),
        "points": [asdict(point) for point in test.points],
    }


def _raise_rate(config: Config, objective: Objective, devices: Devices) -> RangeTest:
    """Train at a rate that rises with each update, until the loss diverges."""
    options, base = config.range_test, config.optim.lr
    assert base is not None
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    window, _ = window_with_weights(config, objective, options.updates, devices.strategy)
    check_micro_batch(config, window.model, devices.replicas)
    window.schedule = exponential_schedule(options.low / base, options.high / base, options.updates)
    with devices.strategy.scope():
        step = devices.runtime.build_step(window, eager=config.debug.eager)
    batches = make_train_stream(
        devices.strategy, objective.data, batch=micro_batch * devices.replicas, seed=config.run.seed
    )
    test = RangeTest()
    say(
        f"raising the rate from {options.low:.3g} to {options.high:.3g} over {format_things(options.updates, 'update')}"
    )
    made = 0
    with counting("updates", options.updates) as report:
        while made < options.updates:
            made += 1
            step.accumulate(batches, config.accum.count)
            update = {name: np.asarray(value).item() for name, value in step.commit().items()}
            report(1)
            if window.loss_scale is not None and not update["finite"] and math.isfinite(update["loss"]):
                continue  # float16 overflowed: the same rate again, with a smaller scale
            test.add(update["learning_rate"], update["loss"])
            if test.diverged or not update["finite"] or not update["state_finite"]:
                test.diverged = True
                break
    if test.diverged:
        say(f"stopped at update {made} of {options.updates}, because the loss diverged: higher rates are not tried")
    return test


# ---- the losses, and the rate that they suggest ----


@dataclass(frozen=True)
class Point:
    """An update. The smoothed loss is a bias-corrected moving average."""

    rate: float
    loss: float
    smoothed: float


@dataclass
class RangeTest:
    """The updates so far. One whose loss is not finite ends the test, and is not among the points."""

    points: list[Point] = field(default_factory=list)
    diverged: bool = False
    _average: float = 0.0

    def add(self, rate: float, loss: float) -> None:
        """Add an update, and note whether the loss has diverged."""
        if not math.isfinite(loss):
            self.diverged = True
            return
        self._average = SMOOTHING * self._average + (1 - SMOOTHING) * loss
        smoothed = self._average / (1 - SMOOTHING ** (len(self.points) + 1))
        self.points.append(Point(rate, loss, smoothed))
        self.diverged = smoothed > DIVERGED * self.lowest.smoothed

    @property
    def lowest(self) -> Point:
        """The point of the lowest smoothed loss. All of it is NaN without points."""
        return min(self.points, key=lambda point: point.smoothed, default=Point(math.nan, math.nan, math.nan))


@dataclass(frozen=True)
class Suggestion:
    """A suggested rate and its reason. `rate` and `steepest` are None if the losses suggest none."""

    rate: float | None
    reason: str
    steepest: Point | None = None


def suggest_rate(test: RangeTest) -> Suggestion:
    """Suggest the smaller of two rates: where the loss falls fastest, and a tenth of where it is lowest."""
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
    found = f"the loss falls fastest at {steepest.rate:.2g} and is lowest at {lowest.rate:.2g}"
    if steepest.rate < tenth:
        reason = f"{found}; of the first and a tenth of the second, the first is the smaller"
    else:
        reason = f"{found}; a tenth of that is the smaller of the two"
    if not test.diverged:
        reason += "; it has not diverged, so a higher range_test.high may find a higher rate"
    return Suggestion(float(f"{min(steepest.rate, tenth):.2g}"), reason, steepest)


def draw_range_test(test: RangeTest, suggested: Suggestion, title: str, path: Path) -> None:
    """Draw loss against rate."""
    figure = new_figure(7, 4.5)
    axis = figure.subplots()
    rates = [point.rate for point in test.points]
    axis.plot(rates, [point.loss for point in test.points], color="C0", lw=0.8, alpha=0.4, label="loss")
    axis.plot(rates, [point.smoothed for point in test.points], color="C0", lw=2, label="smoothed")
    if suggested.rate and suggested.steepest:
        for point, name in ((suggested.steepest, "falls fastest"), (test.lowest, "lowest")):
            axis.plot(point.rate, point.smoothed, "o", label=f"{name}, {point.rate:.2g}")
        axis.axvline(suggested.rate, color="C3", ls="--", label=f"suggested, {suggested.rate:.2g}")
    axis.set(xscale="log", xlabel="learning rate", ylabel="training loss", title=without_math(title))
    smoothed = [point.smoothed for point in test.points]
    if smoothed:
        axis.set_ylim(bottom=0, top=1.5 * max(smoothed[0], min(smoothed)))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    save_figure(figure, path)
