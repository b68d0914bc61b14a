"""The UCI optical digits that ship with accumtrain: 1,797 images of 8 x 8 pixels (see digits/ATTRIBUTION.txt)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accumtrain.data.source import ArraySplit, Source
from accumtrain.kinds.sources import DigitsConfig

NUM_CLASSES = 10
TEST_EXAMPLES = 360
# A pixel is the number of set bits in a block of 4 x 4.
_WHITE = 16


Arrays = tuple[np.ndarray, np.ndarray]


def open_digits(config: DigitsConfig, seed: int) -> Source:
    """1,437 training and 360 test examples, as `load_digits` splits them."""
    train, held_out = (ArraySplit(images, labels, _WHITE) for images, labels in load_digits())
    return Source(train, held_out, NUM_CLASSES)


def load_digits() -> tuple[Arrays, Arrays]:
    """Images, uint8 [N, 8, 8, 1] of values 0 to 16, and labels, [N], of 1,437 training and 360 test examples.

    The split is fixed: the test examples are 360 evenly spaced ones of all examples, sorted by label. So every class
    has its share of them, to within one or two examples.
    """
    with np.load(Path(__file__).with_name("digits") / "digits.npz", allow_pickle=False) as file:
        images, labels = file["images"][..., None], file["labels"]  # [1797, 8, 8, 1], [1797]
    rank = np.empty(len(labels), np.int64)
    rank[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    test = (rank + 1) * TEST_EXAMPLES // len(labels) > rank * TEST_EXAMPLES // len(labels)
    return (images[~test], labels[~test]), (images[test], labels[test])
