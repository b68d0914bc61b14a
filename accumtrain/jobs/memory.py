"""job=memory: what each memory policy takes at the configured micro-batch, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, table
from accumtrain.planning.advice import policies
from accumtrain.planning.auto_steps import speed
from accumtrain.planning.memory_picture import draw_memory
from accumtrain.planning.plan_file import plan_result, title
from accumtrain.planning.probe import Trial, known_micro_batch, probe
from accumtrain.runs.folder import folder_of, result_file

COLUMNS = ("memory", "peak", "state", "activations", "workspace", "images/s", "fits")


def run(config: Config) -> dict[str, Any]:
    """Probes each policy in a process of its own, prints a table and draws memory.png. Trains nothing.

    Returns:
        The content of memory.json: batch_size, memory_limit_mb, micro_batch, trials (fields of probe.Trial).

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
    """
    variants = policies(config)
    trials = [
        probe(variant, known_micro_batch(variant), f" ({number} of {len(variants)})")
        for number, variant in enumerate(variants, 1)
    ]
    micro_batch = next((trial for trial in trials if trial.replicas), trials[0]).micro_batch  # as counted, if one ran
    what = f"{title(config)}, micro-batch {micro_batch}"
    picture = folder_of(config) / "memory.png"
    draw_memory(trials, what, picture)
    table(what, COLUMNS, [_row(trial) for trial in trials])
    for line in _in_words(trials):
        say(line)
    say(f"the same in {result_file(config)}, as a picture in {picture}")
    within = {"memory_limit_mb": config.device.memory_limit_mb, "micro_batch": micro_batch}
    return plan_result(config, within, trials)


def _row(trial: Trial) -> tuple[str, ...]:
    sizes = (trial.peak_bytes, trial.static_bytes, trial.activation_bytes, trial.workspace_bytes)
    return (
        trial.memory,
        *("-" if size is None else format_bytes(size) for size in sizes),
        speed(trial),
        "yes" if trial.fits else "no",
    )


def _in_words(trials: Sequence[Trial]) -> list[str]:
    """How much of the stored activations the other policies take."""
    taken = {trial.memory: trial.activation_bytes for trial in trials}
    stored = taken.pop("store", None)
    if not stored:
        return []
    return [
        f"model.memory={memory} takes {size / stored:.0%} of the memory of stored activations"
        for memory, size in taken.items()
        if size is not None
    ]
