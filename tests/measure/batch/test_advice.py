"""The comparison of batches on made-up numbers, the sentences about it, the table and the picture."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accumtrain.measure.batch.advice import advise, compare, rank, say_untried
from accumtrain.measure.batch.children import COMPLETED, DIVERGED, NO_MEMORY
from accumtrain.measure.batch.results import (
    BatchRow,
    BranchResult,
    HeldOutPoint,
    find_speeds,
    loss_after,
    make_rows,
    mean_of,
    shortest_seconds,
    spread_of,
)
from accumtrain.measure.batch.show import draw_branches, print_rows


def row(batch: int, *losses: float, in_time: tuple[float, ...] = (), steps: int = 1, **more: Any) -> BatchRow:
    fields: dict[str, Any] = {
        "factor": 1.0,
        "rate": 1e-3,
        "half_life": None,
        "beta2": None,
        "updates": 10,
        "ended": COMPLETED,
    }
    fields |= {"examples_per_second": 100.0, "peak_bytes": 2**20} | more
    return BatchRow(batch=batch, steps=steps, losses=losses, losses_in_time=in_time, **fields)


def by_loss(rows: list[BatchRow]) -> Any:
    return compare(rows, lambda row: row.losses)


def test_a_margin_above_the_spread_is_told_with_it():
    rows = [row(16, 0.50, 0.52, in_time=(0.6, 0.61)), row(64, 0.60, 0.61, steps=4, in_time=(0.55, 0.55))]
    said = advise(rows, 1440, 2.5)
    assert said == [
        "after 1,440 examples, batch 16 has the lowest loss, 0.5100, 0.0950 less than batch 64; two orders of their "
        "examples differ by up to 0.0200; smaller batches were not tried (batch_test.batches)",
        "after 2.5 s of training, batch 64 has the lowest loss, 0.5500, 0.0550 less than batch 16; two orders of their "
        "examples differ by up to 0.0100; larger batches were not tried (batch_test.batches)",
        "batch 16 needs no accumulation",
    ]


def test_no_difference_above_the_spread_is_said():
    rows = [row(16, 0.50, 0.56), row(64, 0.51, 0.53, steps=4), row(256, 0.54, 0.525, steps=16)]
    (said,) = advise(rows, 1440, None)[:1]
    assert said.startswith("after 1,440 examples, no difference is larger than the spread of 0.0600: batch 64 has the")
    assert advise(rows, 1440, None)[-1] == "batch 16 needs no accumulation, and is as good after the same examples"


def test_some_may_be_as_good_and_others_not():
    rows = [row(16, 0.51, 0.52, steps=2), row(64, 0.50, 0.52, steps=4), row(256, 0.75, 0.74, steps=16)]
    found = by_loss(rows)
    assert (found.best.batch, [each.batch for each in found.tied], found.all_tied) == (64, [16], False)
    (said,) = advise(rows, 1440, None)
    assert said.endswith("lowest loss, 0.5100, but batch 16 is no farther from it than the spread of 0.0200")


def test_batches_beyond_the_best_one_are_named_where_none_was_tried():
    assert say_untried(16, [16, 64]) == "; smaller batches were not tried (batch_test.batches)"
    assert say_untried(64, [16, 64]) == "; larger batches were not tried (batch_test.batches)"
    assert say_untried(1, [1, 64]) == say_untried(16, [4, 16, 64]) == ""


def test_one_order_of_the_examples_tells_no_spread():
    (said, *_) = advise([row(16, 0.5), row(64, 0.6)], 100, None)
    assert "0.1000 less than batch 64; one order of the examples tells no spread (batch_test.seeds=2 does);" in said


def test_the_best_factor_of_a_batch_counts():
    rows = [row(16, 0.5, factor=1.0), row(16, 0.4, factor=2.0), row(64, factor=1.0, ended=DIVERGED), row(64, 0.7)]
    assert [(each.batch, each.loss) for each in rank(rows)] == [(16, 0.4), (64, 0.7)]
    assert advise(rows, 100, None)[0].startswith(
        "after 100 examples, batch 16 at 2 times its rate has the lowest loss, "
    )


def test_branches_that_diverged_are_not_compared():
    rows = [row(16, 0.5), row(64, ended=DIVERGED)]
    assert advise(rows, 100, 1.0) == ["only batch 16 has completed, so there is nothing to compare it with"]
    (said,) = advise([row(16, ended=DIVERGED), row(64, ended=NO_MEMORY)], 100, None)
    assert said.startswith("no branch has completed (diverged or no memory); where they diverged, give smaller")


def test_means_and_spreads_need_values():
    assert (mean_of((1.0, 2.0)), mean_of(())) == (1.5, None)
    assert (spread_of((1.0, 3.0, 2.0)), spread_of((1.0,)), spread_of(())) == (2.0, None, None)


# ---- curves ----


def branch(batch: int, order: int = 0, factor: float = 1.0) -> Any:
    config = SimpleNamespace(
        batch_size=batch,
        optim=SimpleNamespace(lr=0.1),
        accum=SimpleNamespace(count=1),
        train=SimpleNamespace(steps=10 + 400 // batch),
    )
    return SimpleNamespace(batch=batch, factor=factor, order=order, config=config, updates=400 // batch)


def curve(*losses: float) -> tuple[HeldOutPoint, ...]:
    return tuple(HeldOutPoint(200 * place, loss) for place, loss in enumerate(losses))


RESULTS = [
    BranchResult(branch(4), COMPLETED, curve(2.0, 1.0, 0.4), (50.0,), 100),
    BranchResult(branch(4, 1), COMPLETED, curve(2.0, 1.2, 0.6), (50.0, 30.0), 120),
    BranchResult(branch(16), COMPLETED, curve(2.0, 1.5, 1.0), (100.0,), None),
    BranchResult(branch(16, 1), DIVERGED, curve(2.0), (), None),
]
BEGINNING: Any = SimpleNamespace(step=10, loss=2.0, split="val", told=1.0)


def test_the_loss_between_two_evaluations_lies_on_a_line():
    assert loss_after(curve(2.0, 1.0, 0.4), 100) == 1.5
    assert loss_after(curve(2.0, 1.0, 0.4), 400) == pytest.approx(0.4)
    assert loss_after(curve(2.0, 1.0, 0.4), 400.0001) == pytest.approx(0.4), "a rounding"
    assert loss_after(curve(2.0), 0) is None


def test_the_same_seconds_are_those_of_the_branch_that_ends_first():
    results = [*RESULTS[:3], BranchResult(branch(16, 1), COMPLETED, curve(2.0, 1.5, 1.2), (300.0,), None)]
    assert find_speeds(results) == {(4, 1.0): 50.0, (16, 1.0): 200.0}
    assert shortest_seconds(results) == 2.0
    small, large = make_rows(results, BEGINNING)
    assert small.losses_in_time == pytest.approx((1.5, 1.6)), "in 2 s it has seen 100 examples"
    assert large.losses_in_time == large.losses == (1.0, 1.2)
    assert (small.updates, small.peak_bytes, large.peak_bytes) == (100, 120, None)


def test_a_row_with_a_branch_that_diverged_has_no_loss():
    (_, large) = make_rows(RESULTS, BEGINNING)
    assert (large.ended, large.loss, large.losses_in_time, large.spread) == (DIVERGED, None, (), None)


def test_branches_that_were_not_timed_have_no_loss_in_time():
    results = [BranchResult(branch(size), COMPLETED, curve(2.0, 1.0), (), None) for size in (4, 16)]
    assert [each.loss_in_time for each in make_rows(results, BEGINNING)] == [None, None]
    assert not any("s of training" in said for said in advise(make_rows(results, BEGINNING), 200, None))


# ---- what a person sees ----


def test_the_table_holds_at_80_columns(capsys, terminal):
    rows = [
        row(16, 0.5482, 0.5512, in_time=(0.8489, 0.8337), beta2=0.99975, rate=4.5e-4),
        row(
            4096, 0.5769, 0.5869, in_time=(0.67, 0.68), beta2=0.9990012, rate=1.25e-3, steps=256, peak_bytes=839 * 2**20
        ),
        row(16384, ended=DIVERGED, beta2=0.94, rate=2.5e-3, steps=1024, examples_per_second=12345.0),
    ]
    print_rows("lenet5 on digits", rows, 12.34)
    out = capsys.readouterr().out
    assert "a wider terminal" not in out
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in out.splitlines()) <= 80
    assert all(word in out for word in ("in time: the loss after 12.3 s", "beta2", "839.0 MB", "12,345", "diverged"))


def test_the_picture_has_a_line_for_each_branch(saved_figures, tmp_path: Path):
    draw_branches(RESULTS, "a $title$", tmp_path / "batch.png")
    left, right = saved_figures[0].axes
    assert (len(left.lines), len(right.lines)) == (4, 4)
    assert [text.get_text() for text in saved_figures[0].legends[0].texts] == ["batch 4", "batch 16"]
    assert list(right.lines[0].get_xdata()) == [0, 4, 8]
