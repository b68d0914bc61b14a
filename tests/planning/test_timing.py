"""Actions of a step with those of the data pipeline earlier or later."""

from __future__ import annotations

from random import Random

from accumtrain.planning.timing import with_other_timing


def of_data(action):
    return max(action, ~action) >= 100


def moved_by(seed, actions):
    places = [place for place, action in enumerate(actions) if of_data(action)]
    return with_other_timing(actions, places, Random(seed))


STEP = [0, 1, ~0, 2, ~2, 3, ~1, 4, ~3, ~4]
DATA = [100, 101, ~101, 102, ~100]
TOGETHER = [0, 100, 1, 101, ~0, 2, ~101, ~2, 3, 102, ~1, 4, ~3, ~100, ~4]


def test_both_keep_their_order():
    for seed in range(50):
        moved = moved_by(seed, TOGETHER)
        assert [action for action in moved if not of_data(action)] == STEP
        assert [action for action in moved if of_data(action)] == DATA


def test_data_comes_earlier_and_later():
    """102 stands at 9 of 15: it comes between 4.5, after three actions of each, and the end, after all of the step."""
    places = {moved_by(seed, TOGETHER).index(102) for seed in range(200)}
    assert min(places) == 6
    assert max(places) == 13


def test_without_data_nothing_moves():
    assert moved_by(0, STEP) == STEP
    assert moved_by(0, []) == []
