"""How many units at the end of a reversible network are stored."""

from __future__ import annotations

import pytest

from accumtrain.models.revnet import stored_units


@pytest.mark.parametrize(
    ("units", "widths", "stored"),
    [
        ([2, 2, 11, 2], [256, 512, 1024, 1664], [0, 0, 0, 2]),  # RevNet-104
        ([2, 2, 44, 2], [256, 512, 1024, 1664], [0, 0, 0, 2]),
        ([3, 3, 3], [16, 32, 56], [0, 0, 1]),  # RevNet-38
        ([1], [16], [0]),
    ],
)
def test_stored_units_take_no_more_than_a_quarter_of_a_unit_of_the_first_stage(units, widths, stored):
    assert stored_units(units, widths) == stored
    size = sum(count * width / 4**stage for stage, (count, width) in enumerate(zip(stored, widths, strict=True)))
    assert size <= widths[0] / 4


def test_narrow_stages_at_the_end_are_stored_one_after_the_other():
    assert stored_units([2, 2, 1], [64, 32, 16]) == [0, 1, 1]
