"""When the data pipeline takes its memory in a micro-step: earlier or later, by chance.

Its threads run beside the step, so no two steps take and give back memory in quite the same order, and the allocator
packs one better than the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MOST = 4.0  # exponent of the largest delay; its inverse is that of the largest lead


def with_other_timing(actions: Sequence[int], of_data: Callable[[int], bool], draw: Random) -> list[int]:
    """`actions` of a step, those of the data pipeline moved by one draw; each of both keeps its order in itself.

    An action at a share u of the step moves to u^g, with log g uniform between those of 1 / MOST and MOST.
    """
    power = MOST ** draw.uniform(-1, 1)
    length = max(1, len(actions))
    moved = [
        (length * (place / length) ** power if of_data(action) else place, place, action)
        for place, action in enumerate(actions)
    ]
    return [action for _, _, action in sorted(moved)]
