"""Which units at the end of a reversible network are spared a convolution of their replay."""

from __future__ import annotations

import pytest

from accumtrain.models.revnet import count_stored_inner_convs


@pytest.mark.parametrize(
    ("units", "widths", "bottleneck", "spared"),
    [
        ([2, 2, 11, 2], [256, 512, 1024, 1664], True, [0, 0, 11, 2]),  # RevNet-104
        ([2, 2, 44, 2], [256, 512, 1024, 1664], True, [0, 0, 11, 2]),
        ([3, 3, 3], [16, 32, 56], False, [0, 0, 3]),  # RevNet-38
        ([1], [16], False, [0]),
        ([1], [16], True, [1]),
    ],
)
def test_what_they_keep_takes_at_most_one_and_a_half_streams_of_the_first_stage(units, widths, bottleneck, spared):
    assert count_stored_inner_convs(units, widths, bottleneck) == spared
    inner = [width / 4 if bottleneck else width for width in widths]
    kept = sum(2 * count * width / 4**stage for stage, (count, width) in enumerate(zip(spared, inner, strict=True)))
    assert kept <= 1.5 * widths[0]
