"""A training in a child process, as job=train makes it: its peak of memory is its own, and so is its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import format_measure
from accumtrain.errors import AccumtrainError, DivergedError, OutOfMemoryError
from accumtrain.measure.batch.children import open_request, raise_error, run_in_child
from accumtrain.measure.probe import OUT_OF_MEMORY_EXITS
from accumtrain.process.signals import JobSignals
from accumtrain.runs.contents import measured, read_records, read_summary
from accumtrain.runs.files import write_json
from accumtrain.runs.folder import result_file
from accumtrain.runs.names import folder_of

TASK = "accumtrain.measure.batch.training:train_requested"
# How a training ends. A hook or an evaluation may end one early, or without a loss.
COMPLETED, DIVERGED, NO_MEMORY, NO_LOSS = "completed", "diverged", "no memory", "no loss"


def train_in_child(config: Config) -> str:
    """Begin a training or continue it, to its end. Return how it ended.

    Raises:
        AccumtrainError: it ended for another reason than a loss that diverges, or memory that runs out.
        RuntimeError: it ended by a bug.
    """
    if (ended := find_end(config)) is not None:
        return ended
    result = run_in_child(TASK, config, lambda: tell_progress(config))
    if result.code == DivergedError.exit_code:
        return DIVERGED
    if result.code == OutOfMemoryError.exit_code or result.code in OUT_OF_MEMORY_EXITS:
        return NO_MEMORY
    raise_error(result, config)
    return COMPLETED


def find_end(config: Config) -> str | None:
    """Return how the training has ended, as its summary tells; None if there is something left to do."""
    summary = read_summary(folder_of(config)) or {}
    if summary.get("status") == COMPLETED:
        return COMPLETED if summary["step"] == config.train.steps else None
    return DIVERGED if summary.get("status") == DIVERGED else None


def tell_progress(config: Config) -> str:
    """Return the name of a training, and the newest record of it, in words."""
    records = measured(read_records(folder_of(config)))
    if not records:
        return f"{config.run.name}: before its first update"
    last = records[-1]
    loss = "" if last["loss"] is None else f", {last['split']} loss {format_measure(last['loss'])}"
    return f"{config.run.name}: update {last['step']} of {config.train.steps}{loss}"


# ---- in the child ----


def train_requested(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train the requested configuration, and write its summary."""
    config = open_request(request)
    from accumtrain.train.train import train

    file = result_file(config)
    with JobSignals():
        try:
            summary = train(config)
        except AccumtrainError as error:
            if error.result is not None:
                write_json(file, error.result)
            raise
        write_json(file, summary)
    return {}
