"""The trainings of job=batch, each in a child process: its peak of memory is its own, and so is its end."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from accumtrain.config.keys import flatten_groups
from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.config.roles import keys_with
from accumtrain.config.schema import Config
from accumtrain.console import format_measure, format_seconds, say
from accumtrain.errors import AccumtrainError, DivergedError, OutOfMemoryError, Preempted
from accumtrain.fields import Role
from accumtrain.measure.probe import OUT_OF_MEMORY_EXITS, STOPPED_EXITS
from accumtrain.process import child, environment
from accumtrain.process.child import Child, ChildResult
from accumtrain.process.program import child_command
from accumtrain.process.signals import JobSignals
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.runs.contents import measured, read_records, read_summary
from accumtrain.runs.files import write_json
from accumtrain.runs.folder import result_file
from accumtrain.runs.names import folder_of, make_folder

TASK = "accumtrain.measure.batch.children:train_requested"
OUTPUT = "output.txt"  # in the folder of a training: what it has printed, in all its sessions
LAST_WORDS = 4000  # characters
# How a training ends. A hook or an evaluation may end one early, or without a loss.
COMPLETED, DIVERGED, NO_MEMORY, NO_LOSS = "completed", "diverged", "no memory", "no loss"


def digest_of(config: Config, beginning: str = "") -> str:
    """Return a word of 8 characters for all that decides a training, by which one of other keys has another folder.

    Args:
        beginning: the checksum of the state that it begins with.
    """
    values = to_mapping(config)
    unnamed = keys_with(Role.UNNAMED, values)  # they only tell how a process works
    deciding = {key: value for key, value in flatten_groups(values) if key not in unnamed}
    text = json.dumps([deciding, beginning], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


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


def run_in_child(task: str, config: Config, doing: Callable[[], str]) -> ChildResult:
    """Run a task on a configuration to its end, and print a line about its progress every child.SILENCE seconds.

    When this process is stopped, the child saves its state before this returns.

    Args:
        task: "module:function" of the request and its folder.
        doing: returns the words of the line.

    Raises:
        Preempted: the child was stopped.
    """
    started = time.monotonic()
    if (limit := config.run.walltime_seconds) is not None:
        left = max(1, int(limit - environment.job_seconds()))
        config = replace(config, run=replace(config.run, walltime=f"0:{left // 60}:{left % 60}"))
    make_folder(folder_of(config))
    request = {child.TASK: task, "config": to_mapping(config)}
    with temporary_folder("batch") as folder:
        with Child(child_command(), folder, request, label=str(config.run.name)) as process:
            while not process.wait(child.SILENCE):
                say(f"  {format_seconds(time.monotonic() - started)}: {doing()}")
        ended = process.ended()
    if ended.code in STOPPED_EXITS:
        raise Preempted(ended.answer.get("message", ""))
    return ended


def raise_error(ended: ChildResult, config: Config) -> None:
    """Raise the error with which a child has ended, if any.

    Raises:
        AccumtrainError: the child's error, or the one that says that it was killed.
        RuntimeError: it ended by a bug. The end of what it has printed is in the message.
    """
    if ended.code in OUT_OF_MEMORY_EXITS:
        raise OutOfMemoryError(
            f"{config.run.name} was killed (exit code {ended.code}), as by a system whose memory runs out; raise "
            "accum.steps, or free some memory"
        )
    file = folder_of(config) / OUTPUT
    words = file.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:] if file.exists() else ""
    child.raise_child_error(replace(ended, last_words=f"from {file}:\n{words}"), str(config.run.name))


# ---- in the child ----


def open_request(request: dict[str, Any]) -> Config:
    """Return the configuration of a request, with TensorFlow set up for it. What is printed from here on is kept."""
    config = from_mapping(request["config"])
    _print_into(folder_of(config) / OUTPUT)
    environment.prepare(config.device, probed=True)  # this process may crash
    return config


def _print_into(file: Path) -> None:
    """Let stdout and stderr of this process, also of libraries in C, lead to the end of a file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


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
