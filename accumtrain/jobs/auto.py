"""accum.steps=auto: the largest micro-batch that fits, found by real probes. batch_size and updates stay."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import OmegaConf

from accumtrain.config import CONF_DIR, MEMORIES, Config, from_mapping, to_mapping
from accumtrain.console import format_bytes, say, table
from accumtrain.errors import CheckpointError, ConfigError, OutOfMemoryError
from accumtrain.jobs.probe import SHARE, Trial, free_bytes, probe
from accumtrain.runs import Run

Probe = Callable[[Config, int], Trial]

COLUMNS = ("memory", "accum.steps", "micro-batch", "tensors at peak", "resident", "images/s", "fits")


def settled(config: Config) -> Config:
    """`config` with accum.steps as a number: as given, as its run began with, or found by probes.

    Raises:
        OutOfMemoryError: not even a micro-batch of 1 fits; the message has the peaks of what would help.
    """
    if config.accum.steps != "auto":
        return config
    steps = _saved_steps(config)
    if steps is not None:
        say(f"accum.steps={steps}, as {Run(config).path} began")
        return _with_steps(config, steps)
    say("accum.steps=auto: looking for the largest micro-batch that fits")
    trials = search(config, probe)
    table(f"accum.steps for batch_size={config.batch_size} in {limit_text(config)}", COLUMNS, [row(t) for t in trials])
    fitting = [trial for trial in trials if trial.fits]
    if not fitting:
        raise OutOfMemoryError(what_would_help(config, probe))
    best = max(fitting, key=lambda trial: trial.micro_batch)
    assert best.accum_steps is not None
    say(f"accum.steps={best.accum_steps}: micro-batch {best.micro_batch}")
    return _with_steps(config, best.accum_steps)


def as_trained(config: Config) -> Config:
    """`config` with accum.steps=auto replaced by the number its run was trained with.

    Raises:
        CheckpointError: nothing is trained there.
    """
    if config.accum.steps != "auto":
        return config
    steps = _saved_steps(config)
    if steps is None:
        raise CheckpointError(f"no run in {Run(config).path}: train first, with the same run.name")
    return _with_steps(config, steps)


def search(config: Config, attempt: Probe) -> list[Trial]:
    """Probes until the largest fitting micro-batch is known: it fits, and the next larger one does not, or is none.

    A micro-batch divides the examples of a replica's update, so that every micro-batch is full. From 1 upward by
    doubling, then by where a straight line through the last two fitting trials meets the limit.

    Returns:
        The trials, by micro-batch; if the first does not fit, no other was made.

    Raises:
        ConfigError: batch_size does not divide by the replicas.
    """
    first = attempt(config, 1)
    if first.replicas is None:
        return [first]
    sizes = divisors(config.batch_size // first.replicas)
    trials = {1: first}
    low, high = (
        (0, len(sizes)) if first.fits else (-1, 0)
    )  # places of the largest that fits and the first that does not
    while high - low > 1:
        fitting = [trials[size] for size in sizes[: low + 1] if size in trials]
        place = bisect_right(sizes, _target(config, fitting)) - 1
        place = min(max(place, low + 1), high - 1)
        trials[sizes[place]] = trial = attempt(config, sizes[place])
        low, high = (place, high) if trial.fits else (low, place)
    return [trials[size] for size in sorted(trials)]


def divisors(number: int) -> list[int]:
    """All divisors, increasing."""
    return [size for size in range(1, number + 1) if number % size == 0]


def row(trial: Trial) -> tuple[str, ...]:
    """A trial's line in a table of COLUMNS."""
    speed = trial.examples_per_second
    return (
        trial.memory,
        str(trial.accum_steps or "-"),
        str(trial.micro_batch),
        "-" if trial.peak_bytes is None else format_bytes(trial.peak_bytes),
        "-" if trial.rss_bytes is None else format_bytes(trial.rss_bytes),
        "-" if speed is None else f"{speed:.3g}" if speed < 100 else f"{speed:,.0f}",
        "yes" if trial.fits else "no",
    )


def policies(config: Config) -> list[Config]:
    """The configuration under each memory policy that its model has."""
    variants = [_changed(config, {"model": {"memory": memory}}) for memory in MEMORIES]
    return [variant for variant in variants if variant is not None]


def limit_text(config: Config) -> str:
    """The memory a probe may use, in words."""
    limit = config.device.memory_limit_mb
    return f"{format_bytes(free_bytes())} of free memory" if limit is None else f"device.memory_limit_mb={limit}"


def what_would_help(config: Config, attempt: Probe) -> str:
    """Why not even a micro-batch of 1 fits, and the peaks it would have with other choices: one probe for each."""
    limit = config.device.memory_limit_mb
    choices = {"as it is": config}
    for other in policies(config):
        choices[f"model.memory={other.model.memory}"] = other
    adafactor = OmegaConf.to_container(OmegaConf.load(CONF_DIR / "optim" / "adafactor.yaml"))
    for text, changes in (("optim=adafactor", {"optim": adafactor}), ("precision=bfloat16", {"precision": "bfloat16"})):
        if (variant := _changed(config, changes)) is not None:
            choices[text] = variant
    found = []
    for text, choice in choices.items():
        if text != "as it is" and choice == config:
            continue
        trial = attempt(replace(choice, device=replace(choice.device, memory_limit_mb=None)), 1)
        if trial.peak_bytes is None:
            found.append(f"{text}: more than is free here")
            continue
        fits = limit is not None and trial.peak_bytes <= SHARE * limit * 2**20
        found.append(f"{text}: {format_bytes(trial.peak_bytes)}{' (fits)' if fits else ''}")
    return (
        f"accum.steps=auto: not even a micro-batch of 1 fits in {limit_text(config)}. Tensors at the peak there, "
        f"{'; '.join(found)}. Choose what fits, "
        + ("a smaller model or smaller images" if limit is None else "or raise device.memory_limit_mb")
    )


def _target(config: Config, fitting: Sequence[Trial]) -> int:
    """The micro-batch to try next, given the trials that fit."""
    last = fitting[-1]
    if len(fitting) < 2:
        return 2 * last.micro_batch
    before = fitting[-2]
    limited = config.device.memory_limit_mb
    limit = free_bytes() if limited is None else limited * 2**20
    used, used_before = (t.rss_bytes if limited is None else t.peak_bytes for t in (last, before))
    assert used is not None
    assert used_before is not None
    slope = (used - used_before) / (last.micro_batch - before.micro_batch)
    # not rising: the share of the examples is still hidden by that of the allocator
    return 8 * last.micro_batch if slope <= 0 else last.micro_batch + int((limit - used) / slope)


def _with_steps(config: Config, steps: int) -> Config:
    return replace(config, accum=replace(config.accum, steps=steps))


def _saved_steps(config: Config) -> int | None:
    """accum.steps of the run that is already there, None where there is none."""
    path = Run(config).path / "config.yaml"
    return int(OmegaConf.select(OmegaConf.load(path), "accum.steps")) if path.exists() else None


def _changed(config: Config, changes: dict[str, Any]) -> Config | None:
    """`config` with other values; a kind of its own replaces its group. None where they break a rule."""
    mapping = to_mapping(config)
    for key, value in changes.items():
        whole = not isinstance(value, dict) or "kind" in value
        mapping[key] = value if whole else mapping[key] | value
    try:
        return from_mapping(mapping)
    except ConfigError:
        return None
