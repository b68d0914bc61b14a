"""What a training leaves as summary.json, and the table at its end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import format_seconds, say, table, warn
from accumtrain.engine.checkpoint import Checkpoints
from accumtrain.engine.memory_meter import Meter, activation_bytes, at_peak, state_bytes, tensor_bytes
from accumtrain.engine.window import Window
from accumtrain.jobs.skipped import SKIPPED
from accumtrain.kinds.losses import CrossEntropyConfig
from accumtrain.runs.logbook import Logbook
from accumtrain.runs.measured import measured, watched_split
from accumtrain.runs.run import Run

LEARNED = 0.99  # of the loss of a guess; a model that has learned anything is below


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


def loss_of_a_guess(config: Config, classes: int) -> float | None:
    """The cross-entropy of a model that gives each class the same probability; None for another loss."""
    return math.log(classes) if isinstance(config.loss, CrossEntropyConfig) and classes > 1 else None


def show_closing(summary: dict[str, Any], run: Run, guess: float | None) -> None:
    """Prints the table at the end of a run, and a warning if the model has learned nothing.

    Args:
        guess: the loss of a model that guesses, None where it is not known.
    """
    splits = measured(summary)
    means = list(dict.fromkeys(name for values in splits.values() for name in values))
    rows = [(title, *(_number(values.get(name)) for name in means)) for title, values in splits.items()]
    speed = summary["examples_per_second"]
    table(f"{run.path.name}: {summary['step']:,} updates, {summary['epoch']:.4g} epochs", ("", *means), rows)
    say(f"memory: {at_peak(summary['memory'])}")
    say(
        f"{format_seconds(summary['seconds'])}"
        + (f", {speed:.0f} examples/s" if speed else "")
        + f"; results in {run.path}"
    )
    if skipped := summary["skipped_examples"]:
        warn(f"left out, as they can't be read: {skipped:,} examples, which {SKIPPED} names")
    if guess is not None and summary["epoch"] >= 1:
        _warn_if_no_better_than(guess, summary)


def _warn_if_no_better_than(guess: float, summary: dict[str, Any]) -> None:
    """Says of a loss that is that of a guess what may be the reason."""
    split = watched_split(summary)
    loss, watched = ((summary.get(each) or {}).get("loss") for each in ("train", split))
    if loss is None or watched is None:  # not finite, or not measured
        return
    if loss > LEARNED * guess:
        warn(
            f"loss {loss:.4f} is that of a guess ({guess:.4f}), the model has learned nothing: try another optim.lr, "
            "job=lr suggests one; job=check looks at the data"
        )
    elif watched > LEARNED * guess:
        warn(
            f"{split} loss {watched:.4f} is no better than a guess ({guess:.4f}), that of training is: "
            "moving statistics of batch norm may lag behind, which more updates or a lower model.norm_momentum mend; "
            "or the model knows its training images by heart"
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
