"""job=plan by probes: memory and speed of micro-batch sizes under each memory policy.

Two small sizes of a policy are measured in one process. A straight line through them says which is the largest that
should fit; that one is measured, too, and what is between and beyond lies on lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.planning.advice import policies
from accumtrain.planning.auto_steps import (
    COLUMNS,
    ProbeFunction,
    SmallestFunction,
    limit_text,
    row,
    search,
    sizes_of,
)
from accumtrain.planning.plan_file import plan_result, title
from accumtrain.planning.plan_picture import draw
from accumtrain.planning.probe import Trial, probe, probe_smallest
from accumtrain.planning.search import doubled, on_lines
from accumtrain.runs.folder import folder_of, result_file

ROWS = 6  # largest number for each policy


def plan_by_probes(config: Config) -> dict[str, Any]:
    """Probes, prints a table, and draws plan.png into the run's folder. Trains nothing.

    Returns:
        The content of plan.json: batch_size, memory_limit_mb, trials (fields of probe.Trial).

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
    """
    variants = policies(config)
    trials: list[Trial] = []
    for place, variant in enumerate(variants, start=1):
        note = f" (policy {place} of {len(variants)})"
        trials += plan_policy(variant, partial(probe_smallest, note=note), partial(probe, note=note))
    limit = config.device.memory_limit_mb
    folder = folder_of(config)
    draw(trials, limit, folder / "plan.png")
    lines = [(*row(trial), "measured" if trial.measured else "line") for trial in trials]
    table(f"{title(config)} in {limit_text(config)}", (*COLUMNS, "from"), lines)
    say_where_it_ends(trials)
    say(f"the same in {result_file(config)}, as a picture in {folder / 'plan.png'}")
    return plan_result(config, {"memory_limit_mb": limit}, trials)


def plan_policy(config: Config, smallest: SmallestFunction, attempt: ProbeFunction) -> list[Trial]:
    """Trials of micro-batches, each about twice the one before: measured, or on lines through those that are."""
    measured = search(config, smallest, attempt, table_sizes)
    fitting = [trial for trial in measured if trial.fits]
    if len(fitting) < 2:
        return measured
    trials = {trial.micro_batch: trial for trial in measured}
    sizes = table_sizes(sizes_of(config, fitting[0]))
    return [trials.get(size) or _on_lines(config, fitting, size) for size in sizes]


def table_sizes(sizes: list[int]) -> list[int]:
    """Those that the table shows."""
    return doubled(sizes)[:ROWS]


def _on_lines(config: Config, fitting: Sequence[Trial], size: int) -> Trial:
    """A trial that was not made, by those that fit, the largest of which the next larger one exceeds."""
    peaks = {trial.micro_batch: trial.peak_bytes for trial in fitting if trial.peak_bytes is not None}
    resident = {trial.micro_batch: trial.resident_bytes for trial in fitting if trial.resident_bytes is not None}
    first, largest = fitting[0], fitting[-1]
    assert first.replicas is not None
    return Trial(
        first.memory,
        size,
        fits=size < largest.micro_batch,
        accum_steps=config.batch_size // (size * first.replicas),
        replicas=first.replicas,
        batch_norm=first.batch_norm,
        static_bytes=first.static_bytes,
        peak_bytes=int(on_lines(peaks, size)),
        expected_bytes=int(on_lines(resident, size)),
        measured=False,
    )


def say_where_it_ends(trials: Sequence[Trial]) -> None:
    """Says which micro-batches are not in the table and may fit, too."""
    largest = max(trial.micro_batch for trial in trials)
    if any(trial.fits and trial.micro_batch == largest and trial.accum_steps != 1 for trial in trials):
        say(f"micro-batches above {largest} may fit, too, and were not looked at: accum.steps=auto does")
