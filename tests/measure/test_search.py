"""The search for the largest size that fits, against made-up memory; test_plan.py has the one of the command line."""

import random

import pytest

from accumtrain.measure.search import doubled, largest_that_fits, line_through, micro_batches, on_lines


class Room:
    """Takes `fixed` bytes and `each` for every example, of `limit`."""

    def __init__(self, limit, each, fixed=20.0):
        self.limit, self.each, self.fixed = limit, each, fixed
        self.asked = []

    def __call__(self, size):
        self.asked.append(size)
        used = self.fixed + self.each * size
        return None if used > self.limit else used


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_size_that_fits_is_found_without_trying_one_twice(seed):
    draw = random.Random(seed)
    sizes = sorted({1, *draw.sample(range(2, 500), draw.randint(0, 30))})
    room = Room(draw.randint(10, 500), draw.choice([0.0, 0.01, 1.0, 5.0]))
    guess = draw.choice([room.limit, 0.3 * room.limit, 3.0 * room.limit])  # also a wrong one
    best = largest_that_fits(sizes, room, lambda: guess)
    assert best == max((size for size in sizes if 20.0 + room.each * size <= room.limit), default=None)
    assert len(room.asked) == len(set(room.asked))


def test_memory_on_a_line_needs_few_trials():
    room = Room(limit=1000, each=2.0)
    assert largest_that_fits(range(1, 4097), room, lambda: 1000) == 490
    assert room.asked == [1, 2, 490, 491]


def test_nothing_else_is_tried_if_the_first_size_does_not_fit():
    room = Room(limit=10, each=1.0)
    assert largest_that_fits([1, 2, 4], room, lambda: 10) is None
    assert room.asked == [1]


def test_line_through():
    assert line_through((2, 30.0), (6, 50.0)) == (20.0, 5.0)


def test_values_between_and_beyond_known_ones_lie_on_lines():
    known = {2: 10.0, 4: 14.0, 16: 74.0}
    assert [on_lines(known, place) for place in (1, 2, 3, 10, 16, 32)] == [8.0, 10.0, 12.0, 44.0, 74.0, 154.0]


@pytest.mark.parametrize(
    ("examples", "least", "sizes"),
    [
        (64, 1, [1, 2, 4, 8, 16, 32, 64]),
        (50, 1, [1, 2, 5, 10, 25, 50]),
        (7, 1, [1, 7]),
        (1, 1, [1]),
        (12, 2, [2, 4, 12]),
        (1, 2, [1]),
    ],
)
def test_sizes_of_a_table(examples, least, sizes):
    assert doubled(micro_batches(examples, least)) == sizes
