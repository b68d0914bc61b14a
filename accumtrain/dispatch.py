"""Runs the configured job: makes its folder, prepares TensorFlow, calls the job and writes its result."""

from __future__ import annotations

import sys
from typing import Any

from accumtrain.config.jobs import JOBS, Job
from accumtrain.config.read import expand_homes
from accumtrain.config.rules import check_config
from accumtrain.config.schema import Config
from accumtrain.console import say_at_once, warn
from accumtrain.errors import AccumtrainError, CheckpointError, Preempted
from accumtrain.measure.auto_steps import settle_accum_steps
from accumtrain.measure.settle import with_least_memory, with_memory_settled
from accumtrain.process import environment
from accumtrain.process.signals import DeferredSignals, JobSignals, StoppedBySignal, nothing_saved
from accumtrain.registry import load
from accumtrain.runs.files import write_json
from accumtrain.runs.kernels import chosen_kernels
from accumtrain.runs.lock import check_free
from accumtrain.runs.names import folder_of, open_folder, result_file
from accumtrain.runs.run import Run


def run(config: Config) -> dict[str, Any] | None:
    """Runs `config.job`, as the command line does, and writes the result into the run's folder.

    Returns:
        The result: the content of the job's file (summary.json, bench.json, ...), or None on a worker that is not the
        chief.

    Raises:
        AccumtrainError: one of its subclasses, for anything that is not a bug. `exit_code` is that of the command
            line. If it has a `result`, this is written to the job's file.
        Stopped: a signal stopped a job that can't be continued.
    """
    config = expand_homes(config)
    check_config(config)
    job, result, finished = JOBS[config.job], None, False
    if job.check is not None:
        load(job.check)(config)
    with JobSignals():
        try:
            with open_folder(config):
                result = _run_job(config, job)
                finished = True
        except StoppedBySignal as signal:
            if not finished:
                if not job.preemptible:
                    raise
                raise Preempted(nothing_saved(str(signal))) from None
    return result


def _run_job(config: Config, job: Job) -> dict[str, Any] | None:
    """Runs the job and writes its result, or what its error has left of it."""
    try:
        if job.scope == "train":  # refused before anything is measured
            if not config.device.has_workers:  # the chief of several holds the lock for all
                check_free(folder_of(config))
            Run(config).check_continues()
        with chosen_kernels(config, job):
            config = with_memory_settled(config) if job.probed else with_least_memory(config)
            if not job.in_children:
                if "tensorflow" not in sys.modules:
                    say_at_once("loading TensorFlow ...")
                environment.prepare(config.device, probed=job.probed)
            config = settle_accum_steps(config, job)
            result: dict[str, Any] | None = load(job.run)(config)
    except AccumtrainError as error:
        _write(config, error.result)
        raise
    _write(config, result)
    return result


def _write(config: Config, result: dict[str, Any] | None) -> None:
    if result is None:
        return
    try:
        with DeferredSignals():  # a signal now is too late
            write_json(result_file(config), result)
    except CheckpointError as error:
        if not JOBS[config.job].told_in_full:
            raise
        warn(str(error))
