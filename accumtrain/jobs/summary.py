"""What a training leaves as summary.json, and the table at its end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from accumtrain.backprop.mode import MovingStatistics
from accumtrain.config.schema import Config
from accumtrain.console import format_seconds, say, table, warn
from accumtrain.data.labels import class_counts
from accumtrain.data.source import SPLIT_WORDS, Data
from accumtrain.engine.checkpoint import Checkpoints
from accumtrain.engine.memory_meter import Meter, activation_bytes, at_peak, state_bytes, tensor_bytes
from accumtrain.engine.training_loss import training_loss
from accumtrain.engine.window import Window
from accumtrain.jobs.skipped import SKIPPED
from accumtrain.kinds.losses import CrossEntropyConfig
from accumtrain.kinds.resnets import NORM_MOMENTUM
from accumtrain.runs.logbook import Logbook
from accumtrain.runs.measured import measured
from accumtrain.runs.run import Run

CLOSING = {  # keys of a summary that are shown at the end of a run
    *("status", "step", "epoch", "seconds", "examples_per_second", "memory"),
    *("skipped_windows", "skipped_examples", "best_on"),
}
LEARNED = 0.99  # of the loss of a guess; a model that has learned anything is below
BEHIND = 0.05  # share of their initial values in moving statistics that says that they lag behind
CAUGHT_UP = 0.01  # as much is no matter


def speed_and_memory(window: Window, logbook: Logbook, meter: Meter) -> dict[str, Any]:
    """The part of the summary that is measured."""
    memory = meter.read()
    return {
        "examples_per_second": logbook.examples_per_second,
        "seconds": round(logbook.seconds, 3),
        "seconds_to_first_update": logbook.seconds_to_first_update,
        "memory": memory,
        "memory_by_kind": {
            **state_bytes(window),
            "activations": activation_bytes(memory),
            "workspace": memory["workspace_bytes"],
        },
    }


def results(window: Window, logbook: Logbook, checkpoints: Checkpoints, watched: str) -> dict[str, Any]:
    """The part of the summary that is learned.

    Args:
        watched: name of the split that chooses the best state.
    """
    return {
        "params": window.model.params,
        "optimizer_state_bytes": tensor_bytes(window.optimizer.state),
        **{split: logbook.last(split) for split in dict.fromkeys(("train", watched, "test"))},
        "best": checkpoints.best,
        "best_on": watched,
        "checkpoints": _waiting(checkpoints.pauses),
    }


def batch_sizes(config: Config, micro_batch: int, replicas: int) -> dict[str, Any]:
    """The part of the summary that is arithmetic of the batch."""
    return {
        "batch_size": config.batch_size,
        "micro_batch_size": micro_batch,
        "accum_steps": config.accum.count,
        "replicas": replicas,
    }


def losses_of_a_guess(config: Config, data: Data) -> dict[str, float]:
    """The losses of a model that gives each class the same probability, by split; empty where they are not known.

    The factors on the loss of each class, which evaluations leave out, count in that of training.
    """
    if not isinstance(config.loss, CrossEntropyConfig) or data.num_classes < 2:
        return {}
    guess = math.log(data.num_classes)
    return {**dict.fromkeys(SPLIT_WORDS, guess), "train": guess * _mean_factor(config, data)}


def _mean_factor(config: Config, data: Data) -> float:
    """Of the classes, each as often as it appears in training."""
    factors = training_loss(config, data).factors
    if not factors:
        return 1.0
    counts = np.array(class_counts(data.train, data.num_classes))
    return float(np.average(factors, weights=counts > 0 if data.balanced else counts))


def summary_of_the_end(run: Run, done: int) -> dict[str, Any] | None:
    """The summary that was written after the last update; None if the run was stopped before it was.

    Args:
        done: updates of the run.
    """
    summary = run.read_summary() or {}
    is_whole = summary.keys() >= CLOSING and (summary["status"], summary["step"]) == ("completed", done)
    return summary if is_whole else None


def show_closing(
    summary: dict[str, Any], run: Run, guesses: Mapping[str, float], norms: Sequence[MovingStatistics]
) -> None:
    """Prints the table at the end of a run, and a warning if the model has learned nothing.

    Args:
        guesses: the losses of a model that guesses, by split; empty where they are not known.
        norms: the batch normalisations of the model.
    """
    splits = measured(summary)
    means = list(dict.fromkeys(name for values in splits.values() for name in values))
    rows = [(title, *(_number(values.get(name)) for name in means)) for title, values in splits.items()]
    speed = summary["examples_per_second"]
    table(f"{run.path.name}: {summary['step']:,} updates, {summary['epoch']:.4g} epochs", ("", *means), rows)
    if summary["skipped_windows"]:
        say(f"{summary['skipped_windows']:,} windows made no update: not finite, or without examples that can be read")
    say(f"memory: {at_peak(summary['memory'])}")
    say(
        f"{format_seconds(summary['seconds'])}"
        + (f", {speed:.0f} examples/s" if speed else "")
        + f"; results in {run.path}"
    )
    if skipped := summary["skipped_examples"]:
        warn(f"left out, as they can't be read: {skipped:,} examples, which {SKIPPED} names")
    if guesses and summary["epoch"] >= 1:
        warn_if_no_better_than(guesses, summary, norms)


def warn_if_no_better_than(
    guesses: Mapping[str, float], summary: dict[str, Any], norms: Sequence[MovingStatistics]
) -> None:
    """Says of a loss that is that of a guess what may be the reason."""
    split = summary["best_on"]
    loss, watched = ((summary.get(each) or {}).get("loss") for each in ("train", split))
    if loss is None or watched is None:  # not finite, or not measured
        return
    if loss > LEARNED * guesses["train"]:
        warn(
            f"loss {loss:.4f} is that of a guess ({guesses['train']:.4f}), the model has learned nothing: try "
            "another optim.lr, job=lr suggests one; job=check looks at the data"
        )
    elif watched > LEARNED * guesses[split]:
        warn(
            f"{split} loss {watched:.4f} is no better than a guess ({guesses[split]:.4f}), that of training is: "
            + _why_only_training(norms, summary["step"], split)
        )


def _why_only_training(norms: Sequence[MovingStatistics], updates: int, split: str) -> str:
    initial = max((norm.momentum for norm in norms), default=0.0) ** updates
    if initial < BEHIND:
        return (
            f"the model knows its training images by heart, or those of {split} are others: job=check looks at the data"
        )
    enough = math.floor(100 * CAUGHT_UP ** (1 / updates)) / 100
    return (
        f"the moving statistics of batch norm lag behind, {initial:.0%} of them are still initial values; more updates "
        f"mend it, or model.norm_momentum={min(NORM_MOMENTUM, enough):g}"
    )


def _number(value: float | None) -> str:
    """A number with four digits; "-" for one that is not finite, which JSON holds as null."""
    return "-" if value is None else f"{value:.4f}"


def _waiting(pauses: Sequence[float]) -> dict[str, Any]:
    """How often this session has saved, and how long training had to wait for a checkpoint, in seconds."""
    if not pauses:
        return {"written": 0}
    return {
        "written": len(pauses),
        "seconds_waited": {"median": round(statistics.median(pauses), 4), "most": round(max(pauses), 4)},
    }
