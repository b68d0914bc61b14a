"""job=batch: which batch learns most from the same examples, and in the same time. Read `find_batch` first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from accumtrain.config.check import check_config
from accumtrain.config.schema import Config
from accumtrain.console import format_measure, format_seconds, format_things, say
from accumtrain.errors import Preempted
from accumtrain.measure.batch.advice import advise, best_of_each, compare
from accumtrain.measure.batch.beginning import Beginning, copy_checkpoint, find_beginning
from accumtrain.measure.batch.branches import Branch, list_branches
from accumtrain.measure.batch.check import check_examples, check_splits, list_batches
from accumtrain.measure.batch.results import BatchRow, BranchResult, make_rows, read_result, shortest_seconds
from accumtrain.measure.batch.show import draw_branches, print_rows
from accumtrain.measure.batch.training import COMPLETED, find_end, train_in_child
from accumtrain.process.signals import StoppedBySignal
from accumtrain.runs.folder import job_folder, result_file

PICTURE = "batch.png"


def find_batch(config: Config) -> dict[str, Any]:
    """Train the branches that have not ended, print a table with advice, and draw batch.png.

    Args:
        config: with accum.steps as a number.

    Returns:
        The content of batch.json.

    Raises:
        AccumtrainError: there is no beginning to branch from, or a branch ended by a mistake.
        Preempted: a signal stopped a branch. The same command continues it.
    """
    folder = job_folder(config)
    check_splits(config, config.device.known_replicas)
    started = time.monotonic()
    try:
        beginning = find_beginning(config, folder)
        check_splits(config, beginning.replicas)
        examples = count_examples(config, beginning)
        branches = list_branches(config, beginning, examples, folder)
        for branch in branches:
            check_config(branch.config)
        _tell_plan(config, beginning, branches, examples)
        results = [
            _finish(branch, place, len(branches), beginning, started) for place, branch in enumerate(branches, 1)
        ]
    except (StoppedBySignal, Preempted) as stopped:
        raise Preempted(f"stopped; what is trained is kept in {folder}: run the same command again") from stopped
    rows, seconds = make_rows(results, beginning), shortest_seconds(results)
    what = f"{config.model.label} on {config.data.label}, {config.optim.label}"
    title = f"{what}: {examples:,} examples after update {beginning.step}"
    draw_branches(results, title, folder / PICTURE)
    print_rows(title, rows, seconds)
    advice = advise(rows, examples, seconds)
    for sentence in advice:
        say(sentence)
    say(f"the same in {result_file(config)}, as a picture in {folder / PICTURE}")
    return make_result(config, beginning, examples, results, rows, seconds, advice)


def count_examples(config: Config, beginning: Beginning) -> int:
    """Return the examples of each branch, in whole updates of the largest batch.

    Raises:
        ConfigError: an epoch has fewer examples than the largest batch.
    """
    given, batches = config.batch_test.examples, list_batches(config)
    examples = given or beginning.epoch_examples
    check_examples(batches, examples, f"batch_test.examples=null: an epoch of {examples}" if given is None else "")
    return -(-examples // max(batches)) * max(batches)


def _tell_plan(config: Config, beginning: Beginning, branches: Sequence[Branch], examples: int) -> None:
    left = [branch for branch in branches if find_end(branch.config) is None]
    batches = ", ".join(map(str, list_batches(config)))
    of = f"{format_things(len(branches), 'branch', 'branches')} of {examples:,} examples"
    say(f"{of}, with batches of {batches}, from update {beginning.step} of {beginning.run} on")
    say(f"there the {beginning.split} loss is {format_measure(beginning.loss)}")
    if done := len(branches) - len(left):
        say(f"{done} of them {'has' if done == 1 else 'have'} ended before, and {'is' if done == 1 else 'are'} kept")


def _finish(branch: Branch, place: int, count: int, beginning: Beginning, started: float) -> BranchResult:
    """Train a branch to its end, say in a line how it ended, and return its result."""
    is_new = find_end(branch.config) is None
    copy_checkpoint(beginning.saved, branch.folder)
    ended = train_in_child(branch.config)
    result = read_result(branch, ended, beginning)
    if is_new:
        found = (
            f"{beginning.split} loss {format_measure(result.curve[-1].loss)}"
            if result.ended == COMPLETED
            else result.ended
        )
        updates = format_things(branch.updates_after(beginning.step), "update")
        so_far = format_seconds(time.monotonic() - started)
        say(f"branch {place} of {count}, {branch.name}: {updates}, {found} ({so_far} so far)")
    return result


def make_result(
    config: Config,
    beginning: Beginning,
    examples: int,
    results: Sequence[BranchResult],
    rows: Sequence[BatchRow],
    seconds: float | None,
    advice: Sequence[str],
) -> dict[str, Any]:
    """Return the content of batch.json."""
    ranked = best_of_each(rows)
    found = compare(ranked, lambda row: row.loss, lambda row: row.spread)
    in_time = compare(ranked, lambda row: row.loss_in_time, lambda row: row.spread_in_time)
    means = ("loss", "spread", "loss_in_time", "spread_in_time")
    return {
        "status": "completed",
        "run": str(beginning.run),
        "step": beginning.step,
        "split": beginning.split,
        "loss": beginning.loss,
        "rate": beginning.rate,
        "examples": examples,
        "seconds": seconds,
        "best": found
        and {"batch": found.best.batch, "loss": found.loss, "margin": found.margin, "spread": found.spread},
        "best_in_time": in_time
        and {"batch": in_time.best.batch, "loss": in_time.loss, "margin": in_time.margin, "spread": in_time.spread},
        "advice": list(advice),
        "batches": [{**asdict(row), **{name: getattr(row, name) for name in means}} for row in rows],
        "branches": [
            {
                "name": result.branch.name,
                "batch": result.branch.batch,
                "factor": result.branch.factor,
                "seed": result.branch.config.run.seed,
                "ended": result.ended,
                "curve": [asdict(point) for point in result.curve],
            }
            for result in results
        ],
    }
