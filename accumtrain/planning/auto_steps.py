"""accum.steps=auto: the largest micro-batch that fits, foreseen and confirmed by a probe, or found by probes.

batch_size and updates do not change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from accumtrain.config.arithmetic import divisors
from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, table
from accumtrain.errors import CheckpointError, OutOfMemoryError
from accumtrain.kinds.model_keys import LEAST_WITH_BATCH_NORM
from accumtrain.planning.advice import LAST_RESORT, combined, in_words, remedies
from accumtrain.planning.as_begun import has_fitted, saved_steps, steps_as_begun
from accumtrain.planning.foresight import Foreseen, foresee
from accumtrain.planning.probe import SHARE, Trial, known_micro_batch, probe
from accumtrain.planning.search import Point, largest_that_fits, line_through
from accumtrain.process import environment
from accumtrain.process.free_memory import free_bytes
from accumtrain.runs.folder import folder_of


class ProbeFunction(Protocol):
    """`planning.probe.probe`, or a replacement for it in tests."""

    def __call__(self, config: Config, micro_batch: int | None, note: str = "") -> Trial: ...


ENOUGH = 2 * 2**30  # bytes of free memory: with less, a search for RevNet-104 reads TensorFlow's code again and again
COLUMNS = ("memory", "steps", "micro-batch", "peak", "workspace", "resident", "images/s", "fits")


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
    if (steps := steps_as_begun(config)) is not None:
        say(f"accum.steps={steps}, as {folder_of(config)} began")
        return config.with_accum_steps(steps)
    say("accum.steps=auto: looking for the largest micro-batch that fits")
    if (free := free_bytes()) < ENOUGH:
        say(f"only {format_bytes(free)} of memory is free, and the search takes more than the run itself")
        say("if it is slow, stop it and give accum.steps as a number: the larger, the less memory")
    found = foresee([share], ladder(share.batch_size))
    if isinstance(found, str):
        say(f"the memory of this run can't be foreseen, so it is tried: {found}")
        trials = search(share, probe)
    else:
        trials = search_foreseen(share, probe, partial(_expected, share, found[0]), found[0].batch_norm)
    table(f"accum.steps for batch_size={share.batch_size} in {limit_text(share)}", COLUMNS, [row(t) for t in trials])
    fitting = [trial for trial in trials if trial.fits]
    if not fitting:
        raise OutOfMemoryError(what_would_help(share, probe, trials[0].micro_batch))
    best = max(fitting, key=lambda trial: trial.micro_batch)
    assert best.accum_steps is not None
    say(f"accum.steps={best.accum_steps}: micro-batch {best.micro_batch}")
    return config.with_accum_steps(best.accum_steps)


def _check_fits(config: Config) -> None:
    """Probes once before the first update, so that the run may use kernels that crash if the limit is too low."""
    if not probe(config, known_micro_batch(config)).fits:
        raise OutOfMemoryError(in_words(config, config.device.known_replicas))


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


def search(config: Config, attempt: ProbeFunction) -> list[Trial]:
    """Probes until the largest micro-batch is known that fits while the next larger one does not, or does not exist.

    A micro-batch divides the examples of a replica's update, so that every micro-batch is full. With batch norm it is
    not 1, unless there is no other.

    Returns:
        The trials, sorted by micro-batch. If the first does not fit, there is no other.

    Raises:
        ConfigError: batch_size does not divide by the replicas.
    """
    first = attempt(config, 1)
    if first.replicas is None:
        return [first]
    return search_among(config, attempt, _sizes(config.batch_size // first.replicas, first.batch_norm), [first])


def _sizes(examples: int, batch_norm: bool | None) -> list[int]:
    """The micro-batches that divide the examples of a replica, and that can be trained."""
    sizes = divisors(examples)
    return [size for size in sizes if size >= LEAST_WITH_BATCH_NORM] or sizes if batch_norm else sizes


def search_among(
    config: Config, attempt: ProbeFunction, sizes: Sequence[int], made: Sequence[Trial] = ()
) -> list[Trial]:
    """Probes as `search` does, among these sizes, which are increasing. `made` are trials that need no probe."""
    trials = {trial.micro_batch: trial for trial in made}

    def used(size: int) -> float | None:
        if size not in trials:
            trials[size] = attempt(config, size)
        return point(config, trials[size])[1] if trials[size].fits else None

    if sizes:
        largest_that_fits(sizes, used, partial(budget, config))
    return [trials[size] for size in sorted(trials) if size in sizes]


def search_foreseen(
    config: Config, attempt: ProbeFunction, expected: Callable[[int], float], batch_norm: bool = False
) -> list[Trial]:
    """Probes the largest micro-batch that should fit on one replica: one probe, where what is foreseen is right.

    If it fits, the next larger one is probed only if it should fit by what the probe has measured, and so on. If it
    does not fit, the next smaller one is probed, as the allocator may pack a run a little worse than foreseen; if that
    does not fit either, smaller ones are searched as without foresight.

    Args:
        expected: bytes that a micro-batch takes, as `budget` counts them; not decreasing.
        batch_norm: as in Trial.

    Returns:
        The trials, sorted by micro-batch. If the first does not fit, nothing does.
    """
    sizes = _sizes(config.batch_size, batch_norm)
    place = max(0, bisect_right(sizes, budget(config), key=expected) - 1)
    trials = [attempt(config, sizes[place])]
    if not trials[0].fits and place:
        place -= 1
        trials.insert(0, attempt(config, sizes[place]))
    if not trials[0].fits:
        return [*search_among(config, attempt, sizes[:place]), *trials]
    while trials[-1].fits and place + 1 < len(sizes):
        if _next_from(config, trials, expected, sizes[place + 1]) > budget(config):
            break
        place += 1
        trials.append(attempt(config, sizes[place]))
    return trials


def _next_from(config: Config, trials: Sequence[Trial], expected: Callable[[int], float], size: int) -> float:
    """Bytes of the next larger size: on a line through the last two trials, or as foreseen, in proportion to one."""
    points = [point(config, trial) for trial in trials[-2:]]
    if len(points) == 2:
        base, slope = line_through(*points)
        return base + slope * size
    (tried, used), *_ = points
    return expected(size) * used / expected(tried)


def _expected(config: Config, found: Foreseen, micro_batch: int) -> float:
    """Bytes that a micro-batch takes, as `budget` counts them."""
    peak = found.peak_bytes(micro_batch)
    return peak if config.device.memory_limit_mb is not None else found.resident_bytes(peak)


def ladder(examples: int) -> list[int]:
    """Divisors of `examples` from 1 on, each the smallest that is at least twice the one before."""
    sizes = [1]
    for size in divisors(examples):
        if size >= 2 * sizes[-1]:
            sizes.append(size)
    return sizes


def row(trial: Trial) -> tuple[str, ...]:
    """A trial's line in a table of COLUMNS."""
    sizes = (trial.peak_bytes, trial.workspace_bytes, trial.rss_bytes)
    peak, workspace, resident = ("-" if size is None else format_bytes(size) for size in sizes)
    if trial.peak_bytes is not None and trial.expected_bytes is not None:
        resident = f"some {format_bytes(trial.expected_bytes)}"
    return (
        trial.memory,
        str(trial.accum_steps or "-"),
        str(trial.micro_batch),
        peak,
        workspace,
        resident,
        speed(trial),
        _verdict(trial),
    )


def speed(trial: Trial) -> str:
    """Images per second, as a table shows them."""
    found = trial.examples_per_second
    return "-" if found is None else f"{found:.3g}" if found < 100 else f"{found:,.0f}"


def _verdict(trial: Trial) -> str:
    if trial.peak_bytes is None and trial.expected_bytes is not None:
        return f"beyond (some {format_bytes(trial.expected_bytes)})"
    return "yes" if trial.fits else "no"


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
        tried["all of these"] = combined(config, options)
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


def point(config: Config, trial: Trial) -> Point:
    """The micro-batch of a trial that fits, and the bytes that it takes, as `budget` counts them."""
    used = trial.rss_bytes if config.device.memory_limit_mb is None else trial.peak_bytes
    assert used is not None
    return trial.micro_batch, used
