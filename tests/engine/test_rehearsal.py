"""A rehearsal: which micro-steps are made, and that the memory of these and of the commit is written down."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import pairwise

import pytest

from accumtrain.data.open_data import open_data
from accumtrain.devices.resolve import resolve
from accumtrain.engine import rehearsal
from accumtrain.engine.operation_places import operation_of
from accumtrain.engine.rehearsal import rehearse

SMALL, LARGE = 16, 64  # for images of 8 pixels
FILTERS = 3 * 3 * 16 * 16 * 4  # bytes of a filter of the model, its gradient, and its buffer


@pytest.fixture
def rehearsed(compose):
    """Rehearses a ResNet of two units on digits. Returns what is written down, and the bytes allocated before."""

    def run(*, commit):
        config = compose(
            *("model=resnet20", "model.units=[1,1]", "model.filters=[16,16,32]"),
            *("optim=sgd", "optim.momentum=0", "data=digits", "batch_size=48"),
        )
        data = open_data(config.data, config.run.seed)
        gc.collect()  # tensors of other tests
        before = rehearsal._allocated()
        return rehearse(config, resolve(config.device), data, commit=commit), before

    return run


def parts(log):
    """The changes between each mark and the next one."""
    found, marks = [], [*log.marks, (float("inf"), "")]
    for (begin, name), (end, _) in pairwise(marks):
        found.append((name, [change for change in log.changes if begin <= change.moment < end]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "large_steps", "commit"), [(0.0, 1, False), (30.0, rehearsal.STEPS, True)])
def test_two_sizes_are_stepped_through_then_the_commit(rehearsed, monkeypatch, seconds, large_steps, commit):
    monkeypatch.setattr(rehearsal, "SECONDS", seconds)
    found, before = rehearsed(commit=commit)
    assert found.sizes == (SMALL, LARGE)
    assert [name for _, name in found.log.marks] == [
        *("fill 16", "step 16", "settled 16", "settled 16", "fill 64"),
        *("step 64", "settled 64") * large_steps,
        *("settled 64", *["commit"] * commit, "end"),
    ]
    # weights and buffers are there before the first micro-step, and no activations
    state = 2 * 4 * (9 * (16 + 16 * 16 + 16 * 16 + 16 * 32 + 32 * 32) + 32 * 10)
    assert state < found.static_bytes - before < 1.5 * state
    steps = [changes for name, changes in parts(found.log) if name.startswith("step")]
    assert len(steps) == 1 + large_steps
    of_model = [Counter(kinds(changes, found.places)) for changes in steps]
    first, *others = of_model
    for each in others:  # a step's batch may be handed over by the step, or before
        assert each == pytest.approx(others[0], rel=0.05), "the same operations take memory"
        assert each.keys() == first.keys() == {"forward", "gradient"}
    assert first.total() > 1.2 * others[0].total(), "the first step of all takes more, for a moment"
    for name, changes in parts(found.log):
        if name == "commit":
            assert FILTERS in {change.asked for change in changes if change.taken}


def kinds(changes, places):
    """Of each piece that an operation of the micro-step takes."""
    operations = [operation_of(change.operation) for change in changes if change.taken and change.operation]
    return [places[operation][0] for operation in operations if operation in places]


@pytest.mark.slow
def test_a_step_begins_with_its_batches_ready(rehearsed, monkeypatch):
    """As many of the larger ones as of the smaller, so four times the bytes."""
    monkeypatch.setattr(rehearsal, "CALM", 0.5)  # other tests run beside this one
    found, _ = rehearsed(commit=False)
    held, ready = {}, {}
    for name, changes in parts(found.log):
        if name.startswith("step"):
            ready.setdefault(name, sum(held.values()))
        for change in changes:
            if change.taken:
                held[change.address] = change.asked if change.asked >= SMALL * 8 * 8 * 4 else 0
            else:
                held.pop(change.address, None)
    assert ready["step 16"] > 0
    assert ready["step 64"] == pytest.approx(4 * ready["step 16"], rel=0.1)


def test_the_data_pipeline_is_waited_for_until_it_takes_nothing_more(monkeypatch):
    told, slept = iter([1, 2, 3, 3, 4]), []
    monkeypatch.setattr(rehearsal, "_allocated", lambda: next(told))
    monkeypatch.setattr(rehearsal.time, "sleep", slept.append)
    rehearsal._wait_for_data()
    assert slept == [rehearsal.CALM] * 3
    rehearsal._wait_for_data(longest=0.0)
    assert len(slept) == 3
