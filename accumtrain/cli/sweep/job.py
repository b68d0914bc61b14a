"""A sweep: it checks every job before the first one starts, runs them, and prints a table of their outcomes.

Hydra's own launcher runs the jobs here. Those of another launcher run in child processes, so that the memory, the
devices and a crash of a job do not affect others. The process that starts a child, wherever a launcher has put it, only
waits and prints the output of the job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from multiprocessing import current_process
from pathlib import Path
from threading import Thread
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from accumtrain import dispatch
from accumtrain.cli.compose import call_hydra, list_job_overrides, open_hydra, plain_values, read_config
from accumtrain.cli.guard import run_guarded
from accumtrain.cli.hydra_guard import explain_composing
from accumtrain.cli.overrides import find_given_value, for_hydra
from accumtrain.cli.streams import keep_streams
from accumtrain.cli.sweep import folder as sweep_folder
from accumtrain.cli.sweep import table as sweep_table
from accumtrain.cli.sweep.folder import stop_on_signals
from accumtrain.cli.sweep.table import KILLED, STOPPED, JobOutcome, begin_outcome, find_signal_name
from accumtrain.config.read import expand_home
from accumtrain.config.schema import Config
from accumtrain.console import fail, format_things, say, warn
from accumtrain.errors import ConfigError, Preempted
from accumtrain.process import child
from accumtrain.process.program import child_command
from accumtrain.process.signals import INTERRUPTED, raise_on_signals
from accumtrain.runs.config import RunConfig

MOST_JOBS = 10_000
IN_PROCESS = "basic"  # Hydra's own launcher: one job after the other, in this process
TASK = "accumtrain.cli.sweep.job:run_job_request"
CORES = "OMP_NUM_THREADS"  # set by joblib for each of its processes
THREADS = "TF_NUM_INTRAOP_THREADS"  # read by TensorFlow, which ignores OMP_NUM_THREADS and takes all cores
FAIL_FAST = "sweep.fail_fast"
LOOK = 0.5  # seconds between two looks for the launcher


def run_sweep(options: Namespace) -> int:
    """Run the jobs of the sweep in sys.argv. Return the exit code: that of the first job that failed."""
    keep_streams(quiet=False)
    raise_on_signals()
    configs, swept = _check_jobs(options)
    launcher = find_given_value(options.overrides, "hydra/launcher", IN_PROCESS)
    run_dir = Path(
        configs[0].run.dir if configs else expand_home(find_given_value(options.overrides, "run.dir", RunConfig().dir))
    )
    with sweep_folder.open_sweep_folder(run_dir) as folder:

        def run_job(composed: DictConfig) -> float:  # a launcher sends this function and its values to its processes
            return _run_job(folder, composed, swept)

        stops = nullcontext() if launcher == IN_PROCESS else stop_on_signals(folder)
        code, _ = run_guarded(partial(_launch, options, run_job, stops))
        sweep_folder.end_sweep(folder)
        outcomes = sweep_folder.read_outcomes(folder)
    if outcomes:
        sweep_table.report_sweep(outcomes, run_dir)
        if left := sum(not outcome.started for outcome in outcomes):
            of = f"of {len(outcomes)} runs"
            not_started = format_things(left, f"{of} was not started", f"{of} were not started")
            warn(f"{not_started}, because one had failed ({FAIL_FAST}=true)")
    return next((outcome.exit_code for outcome in outcomes if outcome.exit_code), code)


def _launch(options: Namespace, run_job: Callable[[DictConfig], float], stops: AbstractContextManager[None]) -> None:
    try:
        with stops:
            call_hydra(options, run_job, multirun=True)
    except KeyboardInterrupt:
        raise Preempted("the sweep was stopped; the same command continues it") from None


def _run_job(folder: Path, composed: DictConfig, swept: Sequence[str]) -> float:
    """Run one job of a sweep and write its outcome. Return its objective.

    An error does not stop other jobs, unless sweep.fail_fast asks for it: then those that come later are left out.
    """
    keep_streams(quiet=False)  # those of a launcher's process
    hydra_config = HydraConfig.get()
    number, overrides = hydra_config.job.num, list_job_overrides()
    in_process = hydra_config.runtime.choices["hydra/launcher"] == IN_PROCESS
    if not in_process and not sweep_folder.is_running(folder):
        return 0.0
    if OmegaConf.select(composed, FAIL_FAST) is True and sweep_folder.has_failure(folder):
        outcome = JobOutcome(overrides, started=False)
        sweep_folder.write_outcome(folder, number, outcome)
        return outcome.objective
    say("")
    say(f"run {number + 1} of the sweep: {' '.join(overrides)}")
    if in_process:
        outcome = _run_here(composed, overrides, swept)
    else:
        outcome = run_in_child(folder, number, plain_values(composed), overrides, swept)
    sweep_folder.write_outcome(folder, number, outcome)
    if in_process and outcome.ended_with in STOPPED:
        raise KeyboardInterrupt
    return outcome.objective


def _run_here(composed: DictConfig, overrides: list[str], swept: Sequence[str]) -> JobOutcome:
    code, config = run_guarded(lambda: read_config(plain_values(composed), overrides, swept))
    if config is None:
        return JobOutcome(overrides, ended_with=code)
    outcome = begin_outcome(config, overrides)
    code, _ = run_guarded(partial(dispatch.run, config))
    return replace(outcome, ended_with=code)


def _check_jobs(options: Namespace) -> tuple[list[Config], list[str]]:
    """Check every job of a sweep before the first one starts, if Hydra's own sweeper makes them.

    Return the valid configurations, and the keys that vary. There are no configurations if another sweeper makes the
    jobs. A job that will be refused only causes a warning, as not every corner of a grid has to be possible.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    configs: list[Config] = []
    refused: dict[int, ConfigError] = {}
    with open_hydra(options) as hydra:
        with explain_composing():
            overrides = OverridesParser.create(hydra.config_loader).parse_overrides(options.overrides)
            swept = [override.key_or_group for override in overrides if override.is_sweep_override()]
            if "hydra/sweeper" in str(options.overrides):
                return [], swept
            _check_number(overrides)
            (jobs,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
        if not jobs:
            raise ConfigError("the sweep has no job: a range or glob among the values is empty; give another one")
        for number, job in enumerate(map(for_hydra, jobs), start=1):
            try:
                composed = hydra.compose_config(options.config_name, job, RunMode.RUN, from_shell=False)
                configs.append(read_config(plain_values(composed), job, swept))
            except ConfigError as error:
                refused[number] = error
    if not configs:
        raise next(iter(refused.values()))
    ends = f"; no run starts after that one ({FAIL_FAST}=true)" if configs[0].sweep.fail_fast else ""
    for number, reason in refused.items():
        warn(f"run {number} of the sweep will be refused: {reason}{ends}")
    sweep_table.check_distinct(configs)
    return configs, swept


def _check_number(overrides: Sequence[Override]) -> None:
    """Raise ConfigError for a sweep of so many jobs that a list of them would take the memory."""
    jobs = 1
    for value in (override.value() for override in overrides if override.is_discrete_sweep()):
        values = value.range() if isinstance(value, RangeSweep) else getattr(value, "list", ())
        jobs *= max(1, sum(1 for _ in islice(values, MOST_JOBS + 1)))
        if jobs > MOST_JOBS:
            raise ConfigError(f"a sweep can have at most {MOST_JOBS:,} jobs, and this one has more; give fewer values")


# ---- a job in a child process ----


def run_in_child(
    folder: Path, number: int, values: Mapping[str, Any], overrides: Sequence[str], swept: Sequence[str] = ()
) -> JobOutcome:
    """Run a job in a child. If the sweep ends, the job stops with its state saved.

    Args:
        values: the configuration that Hydra composed for job `number` of the sweep from `overrides`.
        swept: the keys that the sweep varies.
    """
    environment = {}
    if current_process().name.startswith("LokyProcess"):  # of joblib
        _end_with_launcher()
        if CORES in os.environ:  # jobs share them, as more threads than cores make all of them slower
            environment[THREADS] = os.environ.get(THREADS, os.environ[CORES])
    label = f"run {number + 1}"
    request = {
        child.TASK: TASK,
        "folder": str(folder.absolute()),
        "number": number,
        "values": values,
        "overrides": list(overrides),
        "swept": list(swept),
    }
    sweep_folder.write_outcome(folder, number, JobOutcome(list(overrides)))  # without an exit code: it runs
    ended = child.stream_child(child_command(), request, label, partial(sweep_folder.is_running, folder), environment)
    outcome = sweep_folder.read_outcome(folder, number) or JobOutcome(list(overrides))
    return replace(outcome, ended_with=_to_exit_code(ended.code, label))


@cache
def _end_with_launcher() -> None:
    """Make this process end soon after the one that started it, and with it its job, whose state is saved.

    Joblib ends its processes itself, unless it is killed. Then they would wait for jobs for many minutes.
    """
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(LOOK)
        os._exit(Preempted.exit_code)

    Thread(target=watch, daemon=True).start()


def _to_exit_code(returned: int, label: str) -> int:
    if returned >= 0:
        return returned
    if returned == -signal.SIGTERM:  # before there was anything to save
        return INTERRUPTED
    killer = find_signal_name(-returned) or f"signal {-returned}"
    fail(
        f"{label} was killed by {killer}; if the system did so because memory ran out, run fewer jobs at a time, or "
        "raise accum.steps"
    )
    return KILLED - returned


def run_job_request(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the job of a child, and end the process with its exit code."""
    sys.argv[1:] = request["overrides"]  # the command that its summary names

    def job() -> None:
        config = read_config(request["values"], request["overrides"], request["swept"])
        sweep_folder.write_outcome(
            Path(request["folder"]), request["number"], begin_outcome(config, request["overrides"])
        )
        dispatch.run(config)

    sys.exit(run_guarded(job)[0])
