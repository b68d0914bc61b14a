"""accum.steps=auto: the largest micro-batch that fits, found by probes. batch_size and updates do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from accumtrain.config.jobs import cell
from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, table
from accumtrain.errors import OutOfMemoryError
from accumtrain.measure.probe import (
    SHARE,
    ProbeFunction,
    ProbeResult,
    find_limit,
    find_micro_batch,
    probe,
    probe_smallest,
    share_of_limit,
)
from accumtrain.measure.search import Point, largest_that_fits, micro_batches, on_lines
from accumtrain.measure.settle import has_fitted, read_started_steps
from accumtrain.models.config import LEAST_WITH_BATCH_NORM
from accumtrain.process.machine import free_bytes
from accumtrain.runs.names import folder_of
from accumtrain.train.tell.remedies import LAST_RESORT, apply_remedies, describe_out_of_memory, remedies

SmallestFunction = Callable[[Config], list[ProbeResult]]  # `probe_smallest`, or a replacement for it in tests
CLEARLY = 1.1  # a size that should take more than this many times the budget is not tried
ENOUGH = 2 * 2**30  # bytes of free memory: with less, a search for RevNet-104 reads TensorFlow's code again and again
COLUMNS = ("memory", "steps", "micro-batch", "peak", "resident", "examples/s", "fits")


def find_accum_steps(config: Config, own_part: Config) -> int:
    """Return accum.steps with which the run in the folder began, or that probes find.

    Args:
        own_part: the part of `config` that is probed: all, or that of one of several workers.

    Raises:
        OutOfMemoryError: not even the smallest micro-batch fits. The message has remedies with their peaks.
    """
    if (steps := read_started_steps(config)) is not None:
        say(f"accum.steps={steps}, as {folder_of(config)} began")
        return steps
    say("accum.steps=auto: looking for the largest micro-batch that fits")
    if (free := free_bytes()) < ENOUGH:
        say(f"only {format_bytes(free)} of memory is free, and the search takes more than the run itself")
        say("if it is slow, stop it and give accum.steps as a number: the larger, the less memory")
    trials = search(own_part, probe_smallest, probe)
    title = f"accum.steps for batch_size={own_part.batch_size} in {describe_limit(own_part)}"
    table(title, COLUMNS, [format_probe_row(trial) for trial in trials])
    tell_compiler(trials)
    fitting = [trial for trial in trials if trial.fits]
    if not fitting:
        raise OutOfMemoryError(describe_remedies(own_part, probe, trials[0].micro_batch))
    best = max(fitting, key=lambda trial: trial.micro_batch)
    assert best.accum_steps is not None
    say(f"accum.steps={best.accum_steps}: micro-batch {best.micro_batch}")
    return best.accum_steps


def check_fits(config: Config, own_part: Config) -> None:
    """Raise OutOfMemoryError if a probe of `own_part` does not fit. A run that has begun fits.

    The run may then use kernels that crash where the limit is too low.
    """
    if not has_fitted(config) and not probe(own_part, find_micro_batch(own_part)).fits:
        raise OutOfMemoryError(describe_out_of_memory(own_part, own_part.device.known_replicas))


def search(config: Config, smallest: SmallestFunction, attempt: ProbeFunction) -> list[ProbeResult]:
    """Probe until the largest micro-batch that fits is known. The next larger one does not fit, or does not exist.

    A micro-batch divides the examples of a replica's update, so that every micro-batch is full. With batch norm it is
    not 1, unless there is no other. Sizes that a line through the trials settles are not tried. These are sizes below
    one that fits, and sizes that are CLEARLY beyond the budget.

    Args:
        smallest: tries the two smallest micro-batches in one process.
        attempt: tries one micro-batch.

    Returns:
        The trials, sorted by micro-batch. If the first does not fit, it is the only one.

    Raises:
        ConfigError: batch_size is not divisible by the replicas.
    """
    made = smallest(config) or [attempt(config, 1)]
    if made[0].replicas is None:
        return made
    sizes = sizes_of(config, made[0])
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
    """Return the micro-batches that can be trained. A trial that has run knows the replicas and the model's norms."""
    assert trial.replicas is not None
    return micro_batches(config.batch_size // trial.replicas, LEAST_WITH_BATCH_NORM if trial.batch_norm else 1)


def format_probe_row(trial: ProbeResult) -> tuple[str, ...]:
    """Return the line of a trial in a table of COLUMNS."""
    resident = cell(trial.resident_bytes, format_bytes)
    return (
        trial.memory,
        str(trial.accum_steps or "-"),
        str(trial.micro_batch),
        cell(trial.peak_bytes, format_bytes),
        resident if trial.expected_bytes is None else f"~{resident}",
        format_speed(trial),
        "yes" if trial.fits else "no",
    )


def format_speed(trial: ProbeResult) -> str:
    speed = trial.examples_per_second
    return "-" if speed is None else f"{speed:.3g}" if speed < 100 else f"{speed:,.0f}"


def tell_compiler(trials: Sequence[ProbeResult]) -> None:
    """Say where the peaks of a table come from, if they were not measured."""
    if any(trial.peak_by_compiler for trial in trials):
        say("peak: what XLA's compiler has planned for the state and the largest program beside it; not measured")


def describe_limit(config: Config) -> str:
    limit = config.device.memory_limit_mb
    return (
        f"{format_bytes(free_bytes())} of free memory"
        if limit is None
        else f"device.memory_limit_mb={limit} (MB of tensors)"
    )


def describe_remedies(config: Config, attempt: ProbeFunction, least: int) -> str:
    """Return the message if not even the smallest micro-batch fits. Probes measure its peaks with other choices."""
    limit = config.device.memory_limit_mb
    options = remedies(config, replicas=1)
    others = {remedy.override: remedy.config for remedy in options}
    if len(options) > 1:
        others["all of these"] = apply_remedies(config, options)
    trial = attempt(_within(config, None), least)
    if trial.batch_norm and (smallest := sizes_of(config, trial)[0]) != least:
        least, trial = smallest, attempt(_within(config, None), smallest)
    tried = {"as it is": config} | others
    peaks = {"as it is": trial.peak_bytes}
    peaks |= {text: attempt(_within(other, None), least).peak_bytes for text, other in others.items()}
    # Probed under the limit too, as the allocator packs less well with less room.
    fits = [
        text
        for text, peak in peaks.items()
        if limit is not None and peak is not None and peak <= budget(config) and attempt(tried[text], least).fits
    ]
    found = [
        f"{text}: {'more than is free here' if peak is None else format_bytes(peak)}{' (fits)' * (text in fits)}"
        for text, peak in peaks.items()
    ]
    last_resort = _last_resort(
        config, trial.peak_bytes, lambda limit_mb: attempt(_within(config, limit_mb), least).fits
    )
    return (
        f"accum.steps=auto: not even a micro-batch of {least} fits in {describe_limit(config)}. "
        f"Tensors at the peak there, {'; '.join(found)}. {'Choose what fits, or ' if fits else 'So '}{last_resort}"
    )


def _within(config: Config, limit_mb: int | None) -> Config:
    return replace(config, device=replace(config.device, memory_limit_mb=limit_mb))


def _last_resort(config: Config, peak: int | None, fits: Callable[[int], bool]) -> str:
    if config.device.memory_limit_mb is None:
        return f"take {LAST_RESORT}"
    enough = None if peak is None else find_limit(peak, share_of_limit(config.device), fits)
    if enough is None:
        return f"raise device.memory_limit_mb and take {LAST_RESORT}"
    return f"raise device.memory_limit_mb to {enough} at least"


def budget(config: Config) -> float:
    """Return the bytes that a probe may use: of tensors under a limit, else of resident memory."""
    limit = config.device.memory_limit_mb
    return SHARE * free_bytes() if limit is None else share_of_limit(config.device) * limit * 2**20


def point(config: Config, trial: ProbeResult) -> Point:
    """Return the micro-batch of a trial that fits, and its bytes as `budget` counts them."""
    used = trial.resident_bytes if config.device.memory_limit_mb is None else trial.peak_bytes
    assert used is not None
    return trial.micro_batch, used
