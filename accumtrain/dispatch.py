"""Run the configured job. Read `_run_job` first.

Kernels, kept activations and accum.steps are settled first, by probes where needed; then TensorFlow is imported and the
job called.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.check import check_config, explain_missing_jax
from accumtrain.config.jobs import JOBS, Job
from accumtrain.config.read import expand_homes
from accumtrain.config.schema import Config
from accumtrain.console import say_at_once, silence, warn
from accumtrain.devices.cluster import find_cluster
from accumtrain.devices.config import AutoConfig
from accumtrain.errors import AccumtrainError, CheckpointError, Preempted
from accumtrain.fields import JAX, TENSORFLOW
from accumtrain.process import environment
from accumtrain.process.cuda import has_jax_for_gpu
from accumtrain.process.signals import DeferredSignals, JobSignals, StoppedBySignal, nothing_saved, without_traceback
from accumtrain.registry import load
from accumtrain.runs.files import write_json
from accumtrain.runs.folder import open_folder, result_file
from accumtrain.runs.kernels import choose_kernels
from accumtrain.runs.lock import check_free
from accumtrain.runs.names import folder_of
from accumtrain.runs.run import Run


def run(config: Config) -> dict[str, Any] | None:
    """Run `config.job` as the command line does, and write its result into the run's folder.

    Returns:
        The content of the job's file (summary.json, bench.json, ...). None on a worker that is not the chief.

    Raises:
        AccumtrainError: one of its subclasses, for anything that is not a bug. `exit_code` is that of the command
            line. If it has a `result`, this is written to the job's file.
        StoppedBySignal: a signal stopped a job that can't be continued.

    A program that does not catch Preempted or StoppedBySignal ends without a traceback, with exit code 75 or 130.
    """
    config = expand_homes(config)
    check_config(config)
    job, result, finished = JOBS[config.job], None, False
    if job.check is not None:
        load(job.check)(config)
    with JobSignals(), without_traceback():
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
    """Run the job and write its result, or the result in its error."""
    try:
        if job.scope == "train":  # refused before anything is measured
            if not config.device.has_workers:  # the chief of several holds the lock for all
                check_free(folder_of(config))
            Run(config).check_continues()
        if job.probed and config.device.has_workers and find_cluster(config.device).index > 0:
            silence()  # of several workers only the chief prints
        with choose_kernels(config, job):
            config = settle_runtime(config)
            config = settle_kept_activations(config, job)
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


def settle_runtime(config: Config) -> Config:
    """Return `config` with a runtime in the place of device.runtime=auto."""
    if config.device.runtime != "auto":
        return config
    by_jax = environment.takes_gpu(config.device) and explain_missing_jax(config) is None and has_jax_for_gpu()
    return replace(config, device=replace(config.device, runtime=JAX if by_jax else TENSORFLOW))


def settle_kept_activations(config: Config, job: Job) -> Config:
    """Return `config` with a memory policy in place of model.memory=<MB>.

    It is the one that keeps most within that budget or, for jobs that are not probed, the leanest.

    Raises:
        OutOfMemoryError: even the policy that keeps least takes more.
    """
    if isinstance(config.model.memory, str):
        return config
    if not job.probed:
        return replace(config, model=config.model.with_policy(config.model.policies[-1]))
    from accumtrain.measure.settle import find_kept_activations  # here, as most runs measure nothing

    return find_kept_activations(config)


def settle_accum_steps(config: Config, job: Job) -> Config:
    """Return `config` with accum.steps as a number, where the job needs one.

    Raises:
        AccumtrainError: the run does not fit, would fail for another reason, or is not there.
    """
    if job.scope == "trained" and config.accum.is_auto:
        from accumtrain.measure.settle import read_trained_steps

        return config.with_accum_steps(read_trained_steps(config))
    if not job.probed:
        return config
    own_part = config_of_worker(config)
    if config.accum.is_auto:
        from accumtrain.measure.auto_steps import find_accum_steps

        return config.with_accum_steps(find_accum_steps(config, own_part))
    if environment.crashes_when_refused(own_part.device):
        from accumtrain.measure.auto_steps import check_fits

        check_fits(config, own_part)
    return config


def config_of_worker(config: Config) -> Config:
    """Return the part of `config` that this process computes: all of it, but for device=multiworker.

    The part of a worker is its share of every batch on its own devices. It can be probed without the other workers.

    Raises:
        ConfigError: batch_size is not divisible by accum.steps x workers, or nothing says who they are.
    """
    if not config.device.has_workers:
        return config
    cluster = find_cluster(config.device)
    steps = 1 if config.accum.is_auto else config.accum.count
    batch_size = steps * micro_batch_size(config.batch_size, steps, len(cluster.workers))
    kept = ("virtual", "memory_limit_mb", "xla", "tensor_float_32")
    device = AutoConfig(**{key: getattr(config.device, key) for key in kept})
    return replace(config, batch_size=batch_size, batch_ramp={}, device=device)


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
