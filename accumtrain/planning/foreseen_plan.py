"""job=plan: what each micro-batch takes under each memory policy, foreseen where it can be, else by probes.

Of what is foreseen the largest micro-batch that fits is measured, too: how fast it is can't be foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, table
from accumtrain.planning.advice import policies
from accumtrain.planning.auto_steps import COLUMNS, ProbeFunction, budget, limit_text, row
from accumtrain.planning.foresight import Foreseen, ForeseenPoint, foresee
from accumtrain.planning.plan_file import plan_result, title
from accumtrain.planning.plan_picture import draw
from accumtrain.planning.probe import Trial, probe
from accumtrain.planning.probed_plan import plan_by_probes, say_where_it_ends, sizes
from accumtrain.runs.folder import folder_of, result_file

TRIES = 2  # probes of a policy: half of what was foreseen to fit does fit, or something else is wrong
KINDS = {"data": "batches that are ready", "other": "other", "commit": "of the commit"}  # what is not its own word


def plan_memory(config: Config) -> dict[str, Any]:
    """Foresees, prints a table, measures what it can, prints both and draws plan.png into the run's folder.

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
    say("first what is foreseen; then the largest that should fit are measured, and only then is a file written")
    trials = [_trial(config, each, point) for each in found for point in each.points]
    table(f"{title(config)} in {limit_text(config)}, foreseen", COLUMNS, [row(trial) for trial in trials])
    trials = with_largest_measured(variants, trials, probe)
    limit, folder = config.device.memory_limit_mb, folder_of(config)
    lines = [(*row(trial), "measured" if trial.measured else "foreseen") for trial in trials]
    table(f"{title(config)} in {limit_text(config)}", (*COLUMNS, "from"), lines)
    say_where_it_ends(trials)
    for line in moments_in_words(trials):
        say(line)
    draw(trials, limit, folder / "plan.png")
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
        batch_norm=found.batch_norm,
        static_bytes=found.static_bytes,
        peak_bytes=point.peak_bytes,
        workspace_bytes=point.moments[0]["held"].get("workspace", 0),
        expected_bytes=resident,
        measured=False,
        moments=point.moments,
    )


def with_largest_measured(variants: Sequence[Config], foreseen: Sequence[Trial], attempt: ProbeFunction) -> list[Trial]:
    """`foreseen`, with the largest trial of each policy that should fit replaced by a measured one.

    If that one does not fit, the next smaller one is measured too, up to TRIES of a policy. Where nothing should fit,
    nothing is measured.

    Args:
        variants: the configuration with each policy.
        foreseen: trials by increasing micro-batch.
    """
    trials = {(trial.memory, trial.micro_batch): trial for trial in foreseen}
    for place, variant in enumerate(variants, start=1):
        memory = variant.model.policy
        fitting = [trial for trial in foreseen if trial.memory == memory and trial.fits]
        for trial in fitting[: -TRIES - 1 : -1]:
            found = attempt(variant, trial.micro_batch, f" (policy {place} of {len(variants)})")
            trials[memory, trial.micro_batch] = replace(
                found, accum_steps=trial.accum_steps, replicas=trial.replicas, moments=trial.moments
            )
            if found.fits:
                break
    return list(trials.values())


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
