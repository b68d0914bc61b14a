"""job=plan by probes: memory and speed of each micro-batch size under each memory policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.kinds.model_keys import LEAST_WITH_BATCH_NORM
from accumtrain.planning.advice import policies
from accumtrain.planning.auto_steps import COLUMNS, ProbeFunction, budget, ladder, limit_text, point, row
from accumtrain.planning.plan_file import plan_result, title
from accumtrain.planning.plan_picture import draw
from accumtrain.planning.probe import Trial, probe
from accumtrain.planning.search import line_through
from accumtrain.runs.folder import folder_of, result_file

PROBES = 6  # largest number for each policy
CLEARLY = 1.25  # a trial expected to take more than this many times the limit is not made


def plan_by_probes(config: Config) -> dict[str, Any]:
    """Probes, prints a table, and draws plan.png into the run's folder. Trains nothing.

    Returns:
        The content of plan.json: batch_size, memory_limit_mb, trials (fields of probe.Trial).

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
    """
    variants = policies(config)
    trials: list[Trial] = []
    for place, variant in enumerate(variants):
        done = sum(trial.measured for trial in trials)
        trials += climb(variant, probe, done=done, policies_after=len(variants) - place - 1)
    limit = config.device.memory_limit_mb
    folder = folder_of(config)
    draw(trials, limit, folder / "plan.png")
    table(f"{title(config)} in {limit_text(config)}", COLUMNS, [row(trial) for trial in trials])
    say_where_it_ends(trials)
    say(f"the same in {result_file(config)}, as a picture in {folder / 'plan.png'}")
    return plan_result(config, {"memory_limit_mb": limit}, trials)


def climb(config: Config, attempt: ProbeFunction, done: int = 0, policies_after: int = 0) -> list[Trial]:
    """Probes micro-batches from 1 on, each about twice the one before, as long as they fit.

    A micro-batch divides the examples of a replica. The last trial is not made if the two before it show that it would
    be clearly beyond the limit.

    Args:
        done: number of probes of other policies before.
        policies_after: number of policies that follow.
    """

    def place(number: int, planned: Sequence[int]) -> str:
        return f" ({done + number} of about {done + len(planned) * (1 + policies_after)})"

    trials = [attempt(config, 1, place(1, sizes(config, config.device.known_replicas)))]
    if not trials[0].fits:
        return trials
    assert trials[0].replicas is not None
    planned = sizes(config, trials[0].replicas)
    for number, size in enumerate(planned[1:], start=2):
        trials.append(_expected_beyond(config, trials, size) or attempt(config, size, place(number, planned)))
        if not trials[-1].fits:
            break
    return trials


def sizes(config: Config, replicas: int) -> list[int]:
    return ladder(config.batch_size // replicas)[:PROBES]


def say_where_it_ends(trials: Sequence[Trial]) -> None:
    """Says which micro-batches are not in the table and may fit, too, and which are in it and can't be trained."""
    largest = max(trial.micro_batch for trial in trials)
    if any(trial.fits and trial.micro_batch == largest and trial.accum_steps != 1 for trial in trials):
        say(f"micro-batches above {largest} may fit, too, and were not looked at: accum.steps=auto does")
    if any(trial.batch_norm and trial.micro_batch < LEAST_WITH_BATCH_NORM for trial in trials):
        say("a micro-batch of 1 is measured only: batch norm can't learn from the statistics of one example")


def _expected_beyond(config: Config, fitting: Sequence[Trial], size: int) -> Trial | None:
    """The trial of `size` without a probe, if a straight line through the last two is CLEARLY beyond the limit."""
    if len(fitting) < 2:
        return None
    base, slope = line_through(*(point(config, trial) for trial in fitting[-2:]))
    expected = base + slope * size
    if expected <= CLEARLY * budget(config):
        return None
    return Trial(config.model.policy, size, fits=False, expected_bytes=int(expected), measured=False)
