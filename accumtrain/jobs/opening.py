"""The banner at the start of a run: what will be trained, the batch arithmetic, the memory."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.config.arithmetic import Epochs, micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import banner, format_bytes, say, table, warn
from accumtrain.data.labels import class_counts
from accumtrain.data.source import Data
from accumtrain.devices.found import Devices
from accumtrain.engine.memory_meter import state_bytes
from accumtrain.engine.training_loss import training_loss
from accumtrain.engine.window import Window
from accumtrain.jobs.reversal import compares
from accumtrain.kinds.model_keys import REVERSE
from accumtrain.runs.run import Run

SHOWN = 20  # classes whose weight is printed
STATE = {
    "weights": "weights",
    "gradients": "gradient buffer",
    "optimizer": "optimizer state",
    "batch_norm": "batch statistics",
    "ema": "averaged weights",
}


def show_opening(
    config: Config,
    run: Run,
    data: Data,
    devices: Devices,
    window: Window,
    total: int,
    epochs: Epochs,
) -> None:
    """Prints the banner and the notes of the data source, and warns of a schedule that is longer than the run."""
    replicas = devices.replicas
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, replicas)
    sizes = state_bytes(window)
    model = [f"{window.model.params:,} parameters", *_frozen(window), *config.model.facts]
    blind = config.model.policy == REVERSE and not compares(config, devices)
    unseen = ["reversed activations are not compared"] if blind else []
    rows = [
        ("model", f"{config.model.label}: " + ", ".join(model)),
        ("data", f"{config.data.label}: {data.facts}"),
        (
            "batch",
            f"{config.batch_size} = micro-batch {micro_batch} x {_counted(config.accum.count, 'step')} x "
            + _counted(replicas, "replica"),
        ),
        ("updates", f"{total:,} = {float(epochs.at(total)):.4g} epochs"),
        ("progress", f"loss and metrics are means over the last {config.log.every} updates"),
        ("optimizer", config.optim.with_schedule(config.schedule.kind)),
        ("device", "; ".join([devices.description, config.precision, *unseen])),
        ("state", ", ".join(f"{STATE[kind]} {format_bytes(size)}" for kind, size in sizes.items() if size)),
        ("run", str(run.path)),
    ]
    banner(f"accumtrain {config.model.label}", rows)
    for note in [*data.notes, *_too_small(config, data)]:
        say(note)
    _show_factors(config, data)
    for warning in config.schedule.unreached(total) if devices.chief else ():
        warn(warning)


def _show_factors(config: Config, data: Data) -> None:
    """Prints the factor on the loss of each class, if there are any."""
    factors = training_loss(config, data).factors
    if not factors:
        return
    counts = class_counts(data.train, data.num_classes)
    rows = [
        (name, f"{count:,}", f"{factor:.4g}") for name, count, factor in zip(data.classes, counts, factors, strict=True)
    ]
    table("loss.class_weights", ("class", "training images", "weight"), rows[:SHOWN])
    if len(rows) > SHOWN:
        say(f"  ... and {len(rows) - SHOWN:,} more")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _too_small(config: Config, data: Data) -> list[str]:
    """What to say if the model halves images more often than they can be halved."""
    side = min(data.image_shape[:2], default=0)
    if not side or side >> config.model.halvings:
        return []
    return [
        f"{config.model.label} halves images {config.model.halvings} times, and {config.data.label} has "
        f"{' x '.join(map(str, data.image_shape[:2]))} pixels: it is made for larger ones, such as "
        "data=folder data.path=photos data.image_size=224"
    ]


def _frozen(window: Window) -> list[str]:
    frozen = window.model.frozen
    return [f"{sum(int(tf.size(each)) for each in frozen):,} more frozen"] if frozen else []
