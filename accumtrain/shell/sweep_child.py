"""A job of a sweep in a child process, so that its memory, its devices and a crash do not affect other jobs.

The process that starts the child, wherever a launcher has put it, only waits and prints the output of the job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from multiprocessing import current_process
from pathlib import Path
from threading import Thread
from typing import Any

from accumtrain.console import fail
from accumtrain.errors import Preempted
from accumtrain.jobs import dispatch
from accumtrain.process import child
from accumtrain.process.program import child_command
from accumtrain.shell import sweep_folder
from accumtrain.shell.compose import read_config
from accumtrain.shell.guard import INTERRUPTED, guard
from accumtrain.shell.job_outcome import KILLED, JobOutcome, begun, signal_name

TASK = "accumtrain.shell.sweep_child:do_job"
CORES = "OMP_NUM_THREADS"  # set by joblib for each of its processes
THREADS = "TF_NUM_INTRAOP_THREADS"  # read by TensorFlow, which ignores OMP_NUM_THREADS and takes all cores
LOOK = 0.5  # seconds between two looks for the launcher


def run_in_child(folder: Path, number: int, values: Mapping[str, Any], overrides: Sequence[str]) -> JobOutcome:
    """Runs a job in a child. If the sweep ends, the job stops with its state saved.

    Args:
        folder: the folder of the sweep.
        values: the configuration that Hydra composed for job `number` of the sweep from `overrides`.
    """
    if _is_of_joblib():
        _end_with_launcher()
    label = f"run {number + 1}"
    request = {
        child.TASK: TASK,
        "folder": str(folder.absolute()),
        "number": number,
        "values": values,
        "overrides": list(overrides),
    }
    sweep_folder.leave(folder, number, JobOutcome(list(overrides)))  # without an exit code: it runs
    ended = child.show(child_command(), request, label, partial(sweep_folder.goes_on, folder), _environment())
    outcome = sweep_folder.left_by(folder, number) or JobOutcome(list(overrides))
    return replace(outcome, ended_with=_exit_code(ended.code, label))


def _environment() -> dict[str, str]:
    """Shares the cores among jobs of joblib on this machine, as more threads than cores make all of them slower."""
    beside_others = _is_of_joblib() and CORES in os.environ
    return {THREADS: os.environ.get(THREADS, os.environ[CORES])} if beside_others else {}


def _is_of_joblib() -> bool:
    """Whether this is one of the processes that joblib keeps for the jobs of a sweep."""
    return current_process().name.startswith("LokyProcess")


@cache
def _end_with_launcher() -> None:
    """From now on this process ends soon after the one that started it, and with it its job, whose state is saved.

    Joblib ends its processes itself, unless it is killed. Then they would wait for jobs for many minutes.
    """
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(LOOK)
        os._exit(Preempted.exit_code)

    Thread(target=watch, daemon=True).start()


def _exit_code(returned: int, label: str) -> int:
    if returned >= 0:
        return returned
    if returned == -signal.SIGTERM:  # before there was anything to save
        return INTERRUPTED
    killer = signal_name(-returned) or f"signal {-returned}"
    fail(
        f"{label} was killed by {killer}; if that was the system, which does so when memory runs out: fewer jobs at a "
        "time, or a higher accum.steps"
    )
    return KILLED - returned


# --- in the child -----------------------------------------------------------------------------------------------


def do_job(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Runs the job and ends the process with its exit code."""
    sys.argv[1:] = request["overrides"]  # the command that its summary names

    def job() -> None:
        config = read_config(request["values"], request["overrides"])
        sweep_folder.leave(Path(request["folder"]), request["number"], begun(config, request["overrides"]))
        dispatch.run(config)

    sys.exit(guard(job)[0])
