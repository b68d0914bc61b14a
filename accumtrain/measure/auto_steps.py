"""accum.steps=auto: one search for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from accumtrain.config.jobs import Job
from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, table
from accumtrain.errors import CheckpointError, OutOfMemoryError
from accumtrain.measure.probe import (
    SHARE,
    ProbeFunction,
    ProbeResult,
    config_of_worker,
    find_micro_batch,
    probe,
    probe_smallest,
)
from accumtrain.measure.search import Point, largest_that_fits, micro_batches, on_lines
from accumtrain.measure.settle import has_fitted, read_started_steps, saved_steps
from accumtrain.models.config import LEAST_WITH_BATCH_NORM
from accumtrain.process import environment
from accumtrain.process.machine import free_bytes
from accumtrain.runs.names import folder_of
from accumtrain.train.remedies import LAST_RESORT, apply_remedies, describe_out_of_memory, remedies

# accum.steps=auto: the largest micro-batch that fits, found by probes.
#
# batch_size and updates do not change.


SmallestFunction = Callable[
    [Config], list[ProbeResult]
]  # `planning.probe.probe_smallest`, or a replacement for it in tests
CLEARLY = 1.1  # a size that should take more than this many times the budget is not tried
ENOUGH = 2 * 2**30  # bytes of free memory: with less, a search for RevNet-104 reads TensorFlow's code again and again
COLUMNS = ("memory", "steps", "micro-batch", "peak", "workspace", "resident", "images/s", "fits")


def settle_accum_steps(config: Config, job: Job) -> Config:
    """Return `config` with accum.steps as a number, where the job needs one.

    Raises:
        AccumtrainError: the run does not fit, would fail for another reason, or is not there.
    """
    if job.probed:
        return with_accum_steps_resolved(config, config_of_worker(config))
    return with_trained_accum_steps(config) if job.scope == "trained" else config


def with_accum_steps_resolved(config: Config, share: Config | None = None) -> Config:
    """`config` with accum.steps as a number: as given, as its run was started with, or found by probes.

    Args:
        share: what is probed in place of `config`: the part of one of several workers.

    Raises:
        OutOfMemoryError: the run does not fit. With accum.steps=auto not even the smallest micro-batch does, and the
            message has the peaks of what would help.
    """
    share = share or config
    if not config.accum.is_auto:
        if environment.crashes_when_refused(share.device) and not has_fitted(config):
            _check_fits(share)
        return config
    if (steps := read_started_steps(config)) is not None:
        say(f"accum.steps={steps}, as {folder_of(config)} began")
        return config.with_accum_steps(steps)
    say("accum.steps=auto: looking for the largest micro-batch that fits")
    if (free := free_bytes()) < ENOUGH:
        say(f"only {format_bytes(free)} of memory is free, and the search takes more than the run itself")
        say("if it is slow, stop it and give accum.steps as a number: the larger, the less memory")
    trials = search(share, probe_smallest, probe)
    table(
        f"accum.steps for batch_size={share.batch_size} in {limit_text(share)}",
        COLUMNS,
        [format_probe_row(t) for t in trials],
    )
    fitting = [trial for trial in trials if trial.fits]
    if not fitting:
        raise OutOfMemoryError(what_would_help(share, probe, trials[0].micro_batch))
    best = max(fitting, key=lambda trial: trial.micro_batch)
    assert best.accum_steps is not None
    say(f"accum.steps={best.accum_steps}: micro-batch {best.micro_batch}")
    return config.with_accum_steps(best.accum_steps)


def _check_fits(config: Config) -> None:
    """Probes once before the first update, so that the run may use kernels that crash if the limit is too low."""
    if not probe(config, find_micro_batch(config)).fits:
        raise OutOfMemoryError(describe_out_of_memory(config, config.device.known_replicas))


def with_trained_accum_steps(config: Config) -> Config:
    """`config` with accum.steps=auto replaced by the number that its run was trained with.

    Raises:
        CheckpointError: there is no such run, or its config.yaml is damaged.
    """
    if not config.accum.is_auto:
        return config
    steps = saved_steps(config)
    if steps is None:
        raise CheckpointError(f"no run in {folder_of(config)}: train first, with the same run.name")
    return config.with_accum_steps(steps)


def search(
    config: Config,
    smallest: SmallestFunction,
    attempt: ProbeFunction,
    among: Callable[[list[int]], list[int]] = list,
) -> list[ProbeResult]:
    """Probes until the largest micro-batch is known that fits while the next larger one does not, or does not exist.

    A micro-batch divides the examples of a replica's update, so that every micro-batch is full. With batch norm it is
    not 1, unless there is no other. What a line through the trials settles is not tried: sizes below one that fits,
    and sizes that are CLEARLY beyond the budget.

    Args:
        smallest: tries the two smallest micro-batches in one process.
        attempt: tries one.
        among: chooses those that are looked at.

    Returns:
        The trials, sorted by micro-batch. If the first does not fit, there is no other.

    Raises:
        ConfigError: batch_size does not divide by the replicas.
    """
    made = smallest(config) or [attempt(config, 1)]
    if made[0].replicas is None:
        return made
    sizes = among(sizes_of(config, made[0]))
    trials = {trial.micro_batch: trial for trial in made}

    def used(size: int) -> float | None:
        if size not in trials:
            known = dict(point(config, trial) for trial in trials.values() if trial.fits)
            if len(known) > 1 and size < max(known):
                return on_lines(known, size)
            if len(known) > 1 and on_lines(known, size) > CLEARLY * budget(config):
                return None
            trials[size] = attempt(config, size)
        return point(config, trials[size])[1] if trials[size].fits else None

    largest_that_fits(sizes, used, partial(budget, config))
    return [trials[size] for size in sorted(trials) if size in sizes]


def sizes_of(config: Config, trial: ProbeResult) -> list[int]:
    """The micro-batches that can be trained, as a trial that has run tells the replicas and the model's norms."""
    assert trial.replicas is not None
    return micro_batches(config.batch_size // trial.replicas, LEAST_WITH_BATCH_NORM if trial.batch_norm else 1)


def format_probe_row(trial: ProbeResult) -> tuple[str, ...]:
    """A trial's line in a table of COLUMNS."""
    sizes = (trial.peak_bytes, trial.workspace_bytes, trial.resident_bytes)
    peak, workspace, resident = ("-" if size is None else format_bytes(size) for size in sizes)
    if trial.expected_bytes is not None:
        resident = f"some {resident}"
    return (
        trial.memory,
        str(trial.accum_steps or "-"),
        str(trial.micro_batch),
        peak,
        workspace,
        resident,
        speed(trial),
        "yes" if trial.fits else "no",
    )


def speed(trial: ProbeResult) -> str:
    """Images per second, as a table shows them."""
    found = trial.examples_per_second
    return "-" if found is None else f"{found:.3g}" if found < 100 else f"{found:,.0f}"


def limit_text(config: Config) -> str:
    """The memory a probe may use, in words."""
    limit = config.device.memory_limit_mb
    return f"{format_bytes(free_bytes())} of free memory" if limit is None else f"device.memory_limit_mb={limit}"


def what_would_help(config: Config, attempt: ProbeFunction, least: int) -> str:
    """The message if not even the smallest micro-batch fits: its peaks with other choices, measured by probes."""
    limit = config.device.memory_limit_mb
    options = remedies(config, replicas=1)
    tried = {"as it is": config} | {remedy.override: remedy.config for remedy in options}
    if len(options) > 1:
        tried["all of these"] = apply_remedies(config, options)
    peaks = {}
    for text, variant in tried.items():
        free = replace(variant, device=replace(variant.device, memory_limit_mb=None))
        peaks[text] = attempt(free, least).peak_bytes
    # probed under the limit too, as the allocator packs less well with less room
    fits = [
        text
        for text, peak in peaks.items()
        if limit is not None and peak is not None and peak <= budget(config) and attempt(tried[text], least).fits
    ]
    found = [
        f"{text}: {'more than is free here' if peak is None else format_bytes(peak)}{' (fits)' * (text in fits)}"
        for text, peak in peaks.items()
    ]
    return (
        f"accum.steps=auto: not even a micro-batch of {least} fits in {limit_text(config)}. Tensors at the peak there, "
        f"{'; '.join(found)}. {'Choose what fits, or ' if fits else 'So '}{_last_resort(peaks['as it is'], limit)}"
    )


def _last_resort(peak: int | None, limit: int | None) -> str:
    if limit is None:
        return f"take {LAST_RESORT}"
    if peak is None:
        return f"raise device.memory_limit_mb and take {LAST_RESORT}"
    return f"raise device.memory_limit_mb to {math.ceil(peak / SHARE / 2**20)} at least"


def budget(config: Config) -> float:
    """Bytes that a probe may use: tensors under a limit, else resident memory."""
    limit = config.device.memory_limit_mb
    return SHARE * (free_bytes() if limit is None else limit * 2**20)


def point(config: Config, trial: ProbeResult) -> Point:
    """The micro-batch of a trial that fits, and the bytes that it takes, as `budget` counts them."""
    used = trial.resident_bytes if config.device.memory_limit_mb is None else trial.peak_bytes
    assert used is not None
    return trial.micro_batch, used
