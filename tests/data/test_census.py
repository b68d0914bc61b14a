from __future__ import annotations

from collections import Counter

import numpy as np

from accumtrain.data.check import scan_split
from accumtrain.data.source import ArraySplit


def test_arrays_are_looked_at_one_by_one() -> None:
    images = np.arange(70 * 4, dtype=np.float32).reshape(70, 2, 2, 1) / 280
    labels = np.arange(70) % 2
    images[40, 1, 0] = np.nan
    images[50] = images[3]
    labels[60] = 2
    reported: list[int] = []
    census = scan_split(ArraySplit(images, labels), "train", 2, reported.append)
    assert [(bad.name, bad.reason) for bad in census.bad] == [
        ("train example 40", "has pixels that are not finite"),
        ("train example 60", "has label 2, classes are 0..1"),
    ]
    assert census.labels == {0: 33, 1: 35}
    assert census.sizes == Counter({(2, 2): 68})
    assert [found for found in census.contents.values() if len(found) > 1] == [
        [("train example 3", 1), ("train example 50", 0)]
    ]
    assert sum(reported) == 70
