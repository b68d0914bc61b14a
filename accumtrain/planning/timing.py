"""When the data pipeline takes its memory in a micro-step: earlier or later, by chance.

It begins with the step, which takes a batch and so makes room for another, and it is slower or faster. Its threads run
beside the step, so no two steps take and give back memory in quite the same order, and the allocator packs one better
than the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

MOST = 2.0  # times as slow, or as fast, as recorded


def with_other_timing(actions: Sequence[int], of_data: Sequence[int], draw: Random) -> list[int]:
    """`actions` of a step, those of the data pipeline moved by one draw; each of both keeps its order in itself.

    All of them lie as many times as far from the step's begin, between 1 / MOST and MOST by a draw that is uniform on a
    logarithmic scale, and not after its end.

    Args:
        of_data: the places of the pipeline's actions.
    """
    slower = MOST ** draw.uniform(-1, 1)
    moved: list[float] = list(range(len(actions)))
    for place in of_data:
        moved[place] = min(len(actions), place * slower)
    return [actions[place] for place in sorted(range(len(actions)), key=moved.__getitem__)]
