"""The texts around a training: its banner, its last table with a warning, and the parts of summary.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf

from accumtrain.backprop.mode import MovingStatistics
from accumtrain.config.arithmetic import Epochs, micro_batch_size, total_steps
from accumtrain.config.jobs import cell
from accumtrain.config.schema import Config
from accumtrain.console import (
    banner,
    format_bytes,
    format_measure,
    format_seconds,
    format_speed,
    format_things,
    say,
    table,
    warn,
)
from accumtrain.data.inputs.pixels import Pixels
from accumtrain.data.pipeline import make_train_batches
from accumtrain.data.source import Dataset
from accumtrain.devices.found import Devices
from accumtrain.engine.window import Window
from accumtrain.errors import CheckpointError
from accumtrain.fields import LABELS, format_value, is_finite_number, value_at
from accumtrain.models.config import NORM_MOMENTUM, REVERSE
from accumtrain.runs.contents import collect_results, read_config, read_summary
from accumtrain.runs.run import Run
from accumtrain.tasks.config import LOSS
from accumtrain.tasks.objective import Objective
from accumtrain.train.checkpoint import Checkpoints
from accumtrain.train.memory import Meter, activation_bytes, at_peak, state_bytes, tensor_bytes
from accumtrain.train.metrics import MetricsLogger, Position
from accumtrain.train.recovery import SKIPPED, compares

# ---- summary.json, and the table at the end --------------------------------------------------------------------------

CLOSING = {  # keys of a summary that are shown at the end of a run
    *("status", "step", "epoch", "seconds", "examples_per_second", "memory"),
    *("skipped_windows", "skipped_examples", "best_on", "best_by"),
}
USE = "evaluate, predict and export use it, or with state=last the last"
USE_AFTER_FIT = (
    "the model is left in the last state, unless a callback sets its weights; docs/keras.md shows how to get the best"
)
TEST_CHOSE = "it was chosen on test examples, so its test figures are too good: give a new run data.val_fraction=0.1"
LEARNED = 0.99  # of the loss of a guess; a model that has learned anything is below
BEHIND = 0.05  # share of their initial values in moving statistics that says that they lag behind
CAUGHT_UP = 0.01  # such a share does not matter


def batch_facts(config: Config, replicas: int) -> dict[str, Any]:
    """Return the part of the summary about the first batch."""
    return {
        "batch_size": config.batch_size,
        "micro_batch_size": micro_batch_size(config.batch_size, config.accum.count, replicas),
        "accum_steps": config.accum.count,
        "replicas": replicas,
    }


def speed_and_memory(window: Window, logbook: MetricsLogger, meter: Meter) -> dict[str, Any]:
    """Return the part of the summary that is measured."""
    memory = meter.read()
    return {
        "examples_per_second": logbook.examples_per_second,
        "seconds": round(logbook.seconds, 3),
        "seconds_to_first_update": logbook.seconds_to_first_update,
        "memory": memory,
        "memory_by_kind": {**state_bytes(window), "activations": activation_bytes(memory)},
    }


def results(window: Window, logbook: MetricsLogger, checkpoints: Checkpoints, watched: str) -> dict[str, Any]:
    """Return the part of the summary that is learned.

    Args:
        watched: name of the split that chooses the best state.
    """
    return {
        "params": window.model.params,
        "optimizer_state_bytes": tensor_bytes(window.optimizer.state),
        **{split: logbook.last(split) for split in dict.fromkeys(("train", watched, "test"))},
        "best": checkpoints.best,
        "best_on": watched,
        "best_step": checkpoints.best_step,
        "checkpoints": _waiting(checkpoints.pauses),
    }


def summary_of_the_end(run: Run, done: int) -> dict[str, Any] | None:
    """Return the summary that was written after the last update; None if the run was stopped before it was.

    Args:
        done: updates of the run.
    """
    summary = read_summary(run.path) or {}
    is_whole = summary.keys() >= CLOSING and (summary["status"], summary["step"]) == ("completed", done)
    return summary if is_whole else None


def why_finished(config: Config, position: Position, total: int, reason: str | None) -> str:
    """Say why a run needs no further update. `reason` is that of a hook that has ended it, or None."""
    done, epoch = position.done, position.shown_epoch
    if done < total:
        in_a_row = format_things(config.train.patience or 0, "evaluation was", "evaluations in a row were")
        patience = f"{in_a_row} no better than the best (train.patience)"
        return f"stopping early after update {done}, epoch {epoch}: {reason or patience}"
    made = f"{format_things(done, 'update')}, {format_things(epoch, 'epoch')}"
    return f"nothing left to do: the run has made its {made} (train.epochs or train.steps sets how many)"


def why_stopped(config: Config, position: Position, total: int, reason: str | None, run: Run) -> str:
    """Say where a run has stopped, and what continues it. `reason` is that of a hook that asked for it, or None."""
    because = "" if reason is None else f", as a hook asked: {reason}"
    again = "call fit the same way again" if config.device.as_it_is else "run the same command again"
    return (
        f"stopped after update {position.done} of {total}, epoch {position.shown_epoch}{because}; its state is saved "
        f"in {run.path}: {again} to continue"
    )


def print_summary(
    summary: dict[str, Any], run: Run, epochs: str, guesses: Mapping[str, float], norms: Sequence[MovingStatistics]
) -> None:
    """Print the table at the end of a run, and a warning if the loss is no better than a guess.

    Args:
        epochs: that the run has made, as text.
        guesses: the losses of a model that guesses, by split; empty where they are not known.
        norms: the batch normalisations of the model.
    """
    splits = collect_results(summary)
    means = list(dict.fromkeys(name for values in splits.values() for name in values))
    rows = [(title, *(cell(values.get(name), format_measure) for name in means)) for title, values in splits.items()]
    speed = summary["examples_per_second"]
    made = f"{format_things(summary['step'], 'update')}, {format_things(epochs, 'epoch')}"
    table(f"{run.path.name}: {made}", ("", *means), rows)
    if step := summary.get("best_step"):
        by = summary["best_by"]
        use = USE_AFTER_FIT if run.config.device.as_it_is else USE
        say(
            f"best state: update {step:,}, the {'highest' if by['higher_is_better'] else 'lowest'} {by['metric']} on "
            f"{summary['best_on']} (train.monitor); {use}"
        )
        if summary["best_on"] == "test":
            say(TEST_CHOSE)
    elif (unknown := _unknown_metric(summary)) is not None:
        warn(
            f"no state is the best, as {unknown} can't be computed from the {summary['best_on']} examples, so the last "
            "state is used; in a new run train.monitor=loss chooses by the loss"
        )
    if summary["skipped_windows"]:
        skipped = format_things(summary["skipped_windows"], "batch was skipped", "batches were skipped")
        say(f"{skipped}: not finite, or without examples that can be read")
    resident = summary["memory"].get("rss_peak_bytes")
    process = "" if resident is None else f"; the whole process took {format_bytes(resident)}"
    say(f"memory: {at_peak(summary['memory'])}{process}")
    at_speed = f", {format_speed(speed)} examples/s while training" if speed else ""
    say(f"{format_seconds(summary['seconds'])} in all{at_speed}; results in {run.path}")
    if skipped := summary["skipped_examples"]:
        warn(f"left out, as they can't be read: {format_things(skipped, 'example')}, which {SKIPPED} names")
    if guesses and summary["epoch"] >= 1:
        warn_if_no_better_than(guesses, summary, norms)


def _unknown_metric(summary: dict[str, Any]) -> str | None:
    """Return the metric that chooses the best state if the last evaluation had a loss and no value of it; else None."""
    last, name = summary.get(summary["best_on"]) or {}, summary["best_by"]["metric"]
    return str(name) if is_finite_number(last.get(LOSS)) and not is_finite_number(last.get(name)) else None


def warn_if_no_better_than(
    guesses: Mapping[str, float], summary: dict[str, Any], norms: Sequence[MovingStatistics]
) -> None:
    """Warn of a loss that is no better than a guess, with the reason that it may have."""
    split = summary["best_on"]
    loss, watched = ((summary.get(part) or {}).get("loss") for part in ("train", split))
    if loss is None or watched is None:  # not finite, or not measured
        return
    if loss > LEARNED * guesses["train"]:
        warn(
            f"after {format_things(summary['step'], 'update')} the loss, {loss:.4f}, is no better than a guess "
            f"({guesses['train']:.4f}): train longer, or with the optim.lr that job=lr suggests; job=check looks at "
            "the data"
        )
    elif watched > LEARNED * guesses[split]:
        warn(
            f"the {split} loss, {watched:.4f}, is no better than a guess ({guesses[split]:.4f}), that of training is: "
            + _why_only_training(norms, summary["step"], split)
        )


def _why_only_training(norms: Sequence[MovingStatistics], updates: int, split: str) -> str:
    initial = max((norm.momentum for norm in norms), default=0.0) ** updates
    if initial < BEHIND:
        return (
            f"the model knows its training examples by heart, or those of {split} differ: job=check looks at the data"
        )
    enough = math.floor(100 * CAUGHT_UP ** (1 / updates)) / 100
    return (
        f"the moving statistics of batch norm lag behind, {initial:.0%} of them are still initial values; more updates "
        f"help, or model.norm_momentum={min(NORM_MOMENTUM, enough):g}"
    )


def _waiting(pauses: Sequence[float]) -> dict[str, Any]:
    """Return the number of checkpoints of this session, and the seconds that training had to wait for one."""
    if not pauses:
        return {"written": 0}
    return {
        "written": len(pauses),
        "seconds_waited": {"median": round(statistics.median(pauses), 4), "most": round(max(pauses), 4)},
    }


# ---- the first examples ----------------------------------------------------------------------------------------------


def first_pictures(data: Dataset, count: int, seed: int) -> list[bytes]:
    """Return the first examples of the training stream, augmented, as PNG files; none of what can't be seen."""
    if not data.inputs.is_seen:
        return []
    return data.inputs.pictures(next(iter(make_train_batches(data, batch=count, first=0, seed=seed)))["inputs"])


# ---- the banner ------------------------------------------------------------------------------------------------------

SHOWN = 20  # classes or labels whose weight is printed
STATE = {
    "weights": "weights",
    "gradients": "gradient buffer",
    "optimizer": "optimizer state",
    "batch_norm": "batch statistics",
    "ema": "averaged weights",
}


def print_banner(
    config: Config,
    run: Run,
    objective: Objective,
    devices: Devices,
    window: Window,
    total: int,
    epochs: Epochs,
) -> None:
    """Print the banner and the notes of the data source, and warns of a schedule that is longer than the run."""
    replicas, data = devices.replicas, objective.data
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
            describe_batch(epochs.batches[0][1], micro_batch, replicas)
            + "".join(f"; {batch} from update {first + 1:,}" for first, batch in epochs.batches[1:] if first < total),
        ),
        ("updates", f"{total:,} = {format_things(epochs.shown(epochs.at(total)), 'epoch')}"),
        ("progress", f"loss and metrics are means over the last {format_things(config.log.every, 'update')}"),
        ("optimizer", config.optim.with_schedule(config.schedule.kind)),
        *([("means", means)] if (means := describe_means(config, window)) else []),
        ("device", "; ".join([devices.description, config.precision, *unseen])),
        ("state", ", ".join(f"{STATE[kind]} {format_bytes(size)}" for kind, size in sizes.items() if size)),
        ("run", str(run.path)),
    ]
    banner(f"accumtrain {config.model.label}", rows)
    for note in [*data.notes, *_too_small(config, data)]:
        say(note)
    _show_factors(objective)
    for warning in (*config.schedule.unreached(total), *_unreached_batches(config, data)) if devices.chief else ():
        warn(warning)


def describe_batch(batch: int, micro_batch: int, replicas: int) -> str:
    steps = format_things(batch // (micro_batch * replicas), "step")
    return f"{batch} = micro-batch {micro_batch} x {steps} x {format_things(replicas, 'replica')}"


def _unreached_batches(config: Config, data: Dataset) -> Iterator[str]:
    """Yield a warning for each batch of a ramp that a run from its start never makes."""
    epochs = Epochs(config, data.train.size)
    total = total_steps(config, epochs)
    made = {batch for first, batch in epochs.batches if first < total}
    for share, batch in config.batch_ramp.items():
        if batch not in made:
            yield f"batch_ramp.{share}={batch} is never reached: an update before it makes all examples until then"


def describe_means(config: Config, window: Window) -> str:
    """Return the means that follow the batch in words, with the share that an update keeps of each."""
    given = list(config.optim.half_lives.values())
    kept = [mean.share for mean in window.optimizer.means if mean.follows_batch]
    if config.ema.half_life is not None and window.ema is not None:
        given, kept = [*given, ("ema.half_life", config.ema.half_life)], [*kept, window.ema.decay]
    words = [f"{key}={value:g} keeps {share:.6g}" for (key, value), share in zip(given, kept, strict=True)]
    return ", ".join(words) + (" in an update" if words else "")


def tell_changes(config: Config, run: Run) -> None:
    """Say which keys change how the run is computed from here on. Say nothing if its config.yaml can't be read."""
    with suppress(CheckpointError):
        before = read_config(run.path / "config.yaml")
        for key, now in (("accum.steps", config.accum.count), ("device.runtime", config.device.runtime)):
            was = value_at(before, key)
            if was != now:
                say(f"{key}={format_value(now)} from here on; it was {format_value(was)}")


def _show_factors(objective: Objective) -> None:
    """Print the factor on the loss of each class or label, if there are any."""
    loss = objective.loss_config
    if not loss.factors:
        return
    counts = objective.count()
    of_labels = objective.stored.targets == LABELS
    if of_labels:
        counts = [have for have, _ in counts]
    columns = zip(objective.data.classes, counts, loss.factors, strict=True)
    rows = [(name, f"{count:,}", f"{factor:.4g}") for name, count, factor in columns]
    titles = ("label" if of_labels else "class", "training examples", "weight")
    table(loss.factors_key, titles, rows[:SHOWN])
    if len(rows) > SHOWN:
        say(f"  ... and {len(rows) - SHOWN:,} more")


def _too_small(config: Config, data: Dataset) -> list[str]:
    """Say if the model halves images more often than they can be halved."""
    if not isinstance(data.inputs, Pixels) or min(data.shape[:2]) >> config.model.halvings:
        return []
    return [
        f"{config.model.label} halves images {config.model.halvings} times, and {config.data.label} has "
        f"{' x '.join(map(str, data.shape[:2]))} pixels: it is made for larger ones, such as "
        "data=folder data.path=photos data.image_size=224"
    ]


def _frozen(window: Window) -> list[str]:
    frozen = window.model.frozen
    return [f"{sum(int(tf.size(variable)) for variable in frozen):,} more frozen"] if frozen else []
