"""job=lr: a learning-rate range test (Smith 2017, arXiv:1506.01186): the rate rises until the loss diverges."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import train_stream
from accumtrain.data.source import Data
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve
from accumtrain.engine.step import Step
from accumtrain.errors import ConfigError
from accumtrain.jobs.starting import window_with_weights
from accumtrain.optim.schedules import exponential_schedule
from accumtrain.planning.auto_steps import with_accum_steps_resolved
from accumtrain.planning.batch_norm import check_micro_batch
from accumtrain.planning.tensorflow_errors import in_user_words
from accumtrain.progress import counting
from accumtrain.runs.folder import job_folder
from accumtrain.runs.range_test import RangeTest, draw_range_test, suggestion

PICTURE = "lr.png"


def run(config: Config) -> dict[str, Any]:
    """Prints the suggested rate, draws lr.png and returns the content of lr.json. Nothing that is trained is kept.

    Raises:
        ConfigError: the optimizer computes its own rate.
        AccumtrainError: the run would fail too.
    """
    if config.optim.lr is None:
        raise ConfigError(
            "optim.lr=null: the optimizer computes its own rate from the weights, so there is none to try; give any "
            "number, such as optim.lr=0.05, to test rates for it"
        )
    config = with_accum_steps_resolved(config)
    devices = resolve(config.device)
    data = open_data(config.data, config.run.seed)
    with in_user_words(config, data, devices.replicas):
        test = _rise(config, data, devices)
    suggested = suggestion(test)
    path = job_folder(config) / PICTURE
    title = f"{config.model.label} on {config.data.label}, {config.optim.label}, batch {config.batch_size}"
    draw_range_test(test, suggested, title, path)
    _show(title, test)
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


def _rise(config: Config, data: Data, devices: Devices) -> RangeTest:
    """Trains from the initial weights, at a rate that rises with each update, until the loss diverges."""
    options, base = config.range_test, config.optim.lr
    assert base is not None, "run has refused it"
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    window, _ = window_with_weights(config, data, options.updates, devices.strategy)
    check_micro_batch(config, window.model, devices.replicas)
    window.schedule = exponential_schedule(options.low / base, options.high / base, options.updates)
    with devices.strategy.scope():
        step = Step(window, devices.strategy, xla=devices.xla, eager=config.debug.eager)
    batches = train_stream(devices.strategy, data, batch=micro_batch * devices.replicas, seed=config.run.seed)
    test = RangeTest()
    say(f"raising the rate from {options.low:.3g} to {options.high:.3g} over {options.updates} updates")
    with counting("updates", options.updates) as report:
        for _ in range(options.updates):
            step.accumulate(batches, config.accum.count)
            update = {name: value.numpy().item() for name, value in step.commit().items()}
            report(1)
            if window.loss_scale is not None and not update["finite"] and math.isfinite(update["loss"]):
                continue  # float16 overflowed: the same rate again, with a smaller scale
            test.add(update["learning_rate"], update["loss"])
            if test.diverged or not update["finite"] or not update["state_finite"]:
                test.diverged = True
                break
    return test


def _show(title: str, test: RangeTest) -> None:
    """Prints some of the points, evenly spaced."""
    rows = 12
    stride = max(1, -(-len(test.points) // rows))
    shown = [(f"{each.rate:.2e}", f"{each.loss:.4f}", f"{each.smoothed:.4f}") for each in test.points[::stride]]
    table(title, ("rate", "loss", "smoothed"), shown)
