"""The model of the allocator against TensorFlow's own: every piece of random sequences has the same size."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from accumtrain.planning.best_fit import FIRST_REGION, UNIT, BestFitAllocator

MB = 2**20

REAL = """
import json, random, sys
from accumtrain.kinds.devices import CpuConfig
from accumtrain.process import environment
environment.prepare(CpuConfig())
import tensorflow as tf
from accumtrain.engine.allocation_log import log_allocations

def work():
    held = []
    for _ in range(700):
        if held and draw.random() < 0.45:
            held.pop(draw.randrange(len(held)))
        else:
            held.append(tf.raw_ops.Empty(shape=[int(2 ** draw.uniform(0, largest))], dtype=tf.uint8))

if sys.argv[3] == "as a run":
    from accumtrain.devices.resolve import resolve
    resolve(CpuConfig())
draw, largest = random.Random(int(sys.argv[1])), float(sys.argv[2])
log = log_allocations(work)
print(json.dumps([[each.taken, each.address, each.asked, each.size] for each in log.changes]))
"""


@pytest.mark.parametrize("begun", ["bare", "as a run"])
@pytest.mark.parametrize(
    ("seed", "largest"),
    [pytest.param(1, 14, marks=pytest.mark.slow), pytest.param(2, 22, marks=pytest.mark.slow), (3, 28)],
)
def test_pieces_are_as_large_as_tensorflow_s(seed, largest, begun):
    """Up to 16 KB, 4 MB and 256 MB: within the first region, over many, and beyond the largest bin."""
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(seed), str(largest), begun],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    changes = json.loads(done.stdout.splitlines()[-1])
    assert len(changes) > 700
    model, places, sizes = BestFitAllocator(), {}, []
    if begun == "as a run":  # devices/cpu.py has taken a piece of 921 MB and given it back
        for address in (model.take(1), model.take(921 * MB)):
            model.give_back(address)
    for taken, address, asked, size in changes:
        if taken:
            places[address] = model.take(asked)
            sizes.append((model.size(places[address]), size))
        else:
            model.give_back(places.pop(address))
    assert [found for found, _ in sizes] == [real for _, real in sizes]
    assert model.in_use == sum(model.size(place) for place in places.values())


def test_a_piece_is_rounded_up_and_counted():
    allocator = BestFitAllocator()
    first, second = allocator.take(1), allocator.take(UNIT + 1)
    assert (allocator.size(first), allocator.size(second), allocator.in_use) == (256, 512, 768)
    assert second == first + 256
    allocator.give_back(first)
    assert allocator.in_use == 512


def test_a_play_returns_the_most_that_was_handed_out_at_a_time():
    allocator, addresses = BestFitAllocator(), {}
    assert allocator.play([0, 1, ~0, 2, ~1], [1, 2 * UNIT, 1, 5 * UNIT], addresses) == 3 * UNIT
    assert addresses == {2: min(addresses.values())}
    assert allocator.in_use == UNIT
    assert allocator.play([3, ~2, ~3], [0, 0, 0, 5 * UNIT], addresses) == 6 * UNIT
    assert (allocator.in_use, addresses) == (0, {})
    kept = allocator.take(UNIT)
    assert allocator.play([], [], addresses) == UNIT, "what was there before counts"
    assert allocator.size(kept) == UNIT


def test_a_free_piece_is_handed_out_whole_unless_it_is_twice_as_large():
    allocator = BestFitAllocator()
    hole, _ = allocator.take(1000 * UNIT), allocator.take(1)
    allocator.give_back(hole)
    again = allocator.take(501 * UNIT)
    assert (again, allocator.size(again)) == (hole, 1000 * UNIT)
    allocator.give_back(again)
    again = allocator.take(500 * UNIT)
    assert (again, allocator.size(again)) == (hole, 500 * UNIT)


def test_free_neighbours_become_one():
    allocator = BestFitAllocator()
    pieces = [allocator.take(100 * UNIT) for _ in range(4)]
    for piece in (pieces[0], pieces[2], pieces[1]):
        allocator.give_back(piece)
    assert allocator.take(300 * UNIT) == pieces[0]


def test_regions_double_and_end_at_the_limit():
    allocator = BestFitAllocator(limit=8 * MB)
    first = allocator.take(FIRST_REGION)
    second = allocator.take(4 * MB)
    assert abs(first - second) > 8 * MB, "another region"
    allocator.take(2 * MB)
    with pytest.raises(MemoryError, match=r"256 bytes are asked for, and 0 are left of 8388608"):
        allocator.take(1)


def test_a_copy_goes_its_own_way():
    allocator = BestFitAllocator()
    piece = allocator.take(1000)
    twin = allocator.copy()
    twin.give_back(piece)
    assert (twin.in_use, allocator.in_use) == (0, 1024)
    allocator.give_back(piece)
    assert allocator.take(1) == twin.take(1)
