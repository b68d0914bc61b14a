"""The child processes of job=batch, one after the other. What a child prints goes to a file in its folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import format_seconds, say
from accumtrain.errors import OutOfMemoryError, Preempted
from accumtrain.measure.probe import OUT_OF_MEMORY_EXITS, STOPPED_EXITS
from accumtrain.process import child, environment
from accumtrain.process.child import Child, ChildResult
from accumtrain.process.program import child_command
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.runs.names import folder_of, make_folder

OUTPUT = "output.txt"  # in the folder of a training: what it has printed, in all its sessions
LAST_WORDS = 4000  # characters


def run_in_child(task: str, config: Config, doing: Callable[[], str]) -> ChildResult:
    """Run a task on a configuration to its end, and print a line about its progress every child.SILENCE seconds.

    When this process is stopped, the child saves its state before this returns.

    Args:
        task: "module:function" of the request and its folder.
        doing: returns the words of the line.

    Raises:
        Preempted: the child was stopped.
    """
    started, (hours, seconds) = time.monotonic(), divmod(_seconds_left(config), 3600)
    walltime = None if config.run.walltime is None else f"{hours}:{seconds // 60}:{seconds % 60}"
    config = replace(config, run=replace(config.run, walltime=walltime))
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


def _seconds_left(config: Config) -> int:
    """Return the whole seconds of run.walltime that are left; 0 without a limit."""
    limit = config.run.walltime_seconds
    return 0 if limit is None else max(1, int(limit - environment.job_seconds()))


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
    if ended.code and "message" not in ended.answer:
        file = folder_of(config) / OUTPUT
        words = file.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:] if file.exists() else ""
        raise RuntimeError(f"{config.run.name} ended with code {ended.code}; from {file}:\n{words}")
    child.raise_child_error(ended, str(config.run.name))


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
