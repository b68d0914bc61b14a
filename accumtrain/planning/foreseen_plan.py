"""job=plan: the memory of each micro-batch under each memory policy, foreseen where it can be, else by probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, table
from accumtrain.planning.advice import policies
from accumtrain.planning.auto_steps import budget, limit_text
from accumtrain.planning.foresight import Foreseen, ForeseenPoint, foresee
from accumtrain.planning.plan_file import plan_result, title
from accumtrain.planning.probe import Trial
from accumtrain.planning.probed_plan import draw, plan_by_probes, sizes
from accumtrain.runs.folder import folder_of, result_file

COLUMNS = ("memory", "steps", "micro-batch", "peak", "state", "resident", "fits")
KINDS = {"data": "batches that are ready", "other": "other", "commit": "of the commit"}  # what is not its own word


def plan_memory(config: Config) -> dict[str, Any]:
    """Foresees, prints a table and the largest moments, and draws plan.png into the run's folder. Trains nothing.

    Returns:
        The content of plan.json: batch_size, memory_limit_mb, trials (fields of probe.Trial).

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
    """
    variants = policies(config)
    planned = sizes(config, config.device.known_replicas)
    found = foresee(variants, planned)
    if isinstance(found, str):
        say(f"the memory of this run can't be foreseen, so it is tried: {found}")
        return plan_by_probes(config)
    trials = [_trial(config, each, point) for each in found for point in each.points]
    limit, folder = config.device.memory_limit_mb, folder_of(config)
    draw(trials, limit, folder / "plan.png")
    table(f"{title(config)} in {limit_text(config)}, foreseen", COLUMNS, [_row(trial) for trial in trials])
    for line in moments_in_words(trials):
        say(line)
    say("how fast it is: accumtrain job=memory with accum.steps of a line measures each policy")
    say(f"the same in {result_file(config)}, as a picture in {folder / 'plan.png'}")
    return plan_result(config, {"memory_limit_mb": limit}, trials)


def _trial(config: Config, found: Foreseen, point: ForeseenPoint) -> Trial:
    resident = int(found.resident_bytes(point.peak_bytes))
    used = resident if config.device.memory_limit_mb is None else point.peak_bytes
    return Trial(
        found.memory,
        point.micro_batch,
        fits=used <= budget(config),
        accum_steps=config.batch_size // point.micro_batch,
        replicas=1,
        static_bytes=found.static_bytes,
        peak_bytes=point.peak_bytes,
        workspace_bytes=point.moments[0]["held"].get("workspace", 0),
        expected_bytes=resident,
        foreseen=True,
        moments=point.moments,
    )


def _row(trial: Trial) -> tuple[str, ...]:
    assert trial.peak_bytes is not None
    assert trial.static_bytes is not None
    assert trial.expected_bytes is not None
    return (
        trial.memory,
        str(trial.accum_steps),
        str(trial.micro_batch),
        format_bytes(trial.peak_bytes),
        format_bytes(trial.static_bytes),
        f"some {format_bytes(trial.expected_bytes)}",
        "yes" if trial.fits else "no",
    )


def moments_in_words(trials: Sequence[Trial]) -> list[str]:
    """The largest moments of each policy, at its largest micro-batch that fits, or at its smallest if none does."""
    lines = []
    for memory in dict.fromkeys(trial.memory for trial in trials):
        of_policy = [trial for trial in trials if trial.memory == memory]
        shown = max((trial for trial in of_policy if trial.fits), key=lambda trial: trial.micro_batch, default=None)
        shown = shown or of_policy[0]
        lines.append(f"largest moments of {memory}, micro-batch {shown.micro_batch}:")
        lines += [f"  {_moment(moment)}" for moment in shown.moments or []]
    return lines


def _moment(moment: dict[str, Any]) -> str:
    held = [f"{KINDS.get(kind, kind)} {format_bytes(size)}" for kind, size in moment["held"].items() if size >= 2**16]
    return f"{format_bytes(moment['bytes'])} in {moment['words']}: {', '.join(held)}"
