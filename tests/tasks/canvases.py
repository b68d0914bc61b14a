"""Canvases composed of the embedded digits, and what is on them; and the command line with these as data.

`python -m tests.tasks.canvases KEY=VALUE ...` is `accumtrain KEY=VALUE ...` with data=canvas_labels and
data=canvas_numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import accumtrain
from accumtrain.config.registries import register_data
from accumtrain.data.config import DataConfig
from accumtrain.data.source import ArraySplit, Source
from accumtrain.data.sources.builtin import load_digits

CELL, SIDE = 10, 20  # pixels; a canvas has 2 x 2 cells, each with one digit of 8 x 8, or none
LABELS = [f"digit {number}" for number in range(10)]  # that are on a canvas
NUMBERS = ["digits", "row", "column"]  # how many, and where the first one begins


@dataclass(kw_only=True)
class CanvasConfig(DataConfig):
    """Canvases of digits.

    `unknown`: share of the labels or numbers that are not known.
    `train_examples`: their number.
    `test_examples`: their number.
    """

    unknown: float = 0.1
    train_examples: int = 320
    test_examples: int = 90

    WHITE: ClassVar[int] = 16


def compose(digits: tuple[np.ndarray, np.ndarray], count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images, uint8 [N, 20, 20, 1], labels [N, 10] and numbers [N, 3]."""
    images, classes = digits
    draw = np.random.default_rng(seed)
    canvases = np.zeros([count, SIDE, SIDE, 1], np.uint8)
    labels, numbers = np.zeros([count, len(LABELS)]), np.zeros([count, len(NUMBERS)])
    for canvas, label, number in zip(canvases, labels, numbers, strict=True):
        cells = np.flatnonzero(draw.random(4) < 0.5)
        cells = cells if cells.size else draw.integers(0, 4, 1)
        for order, cell in enumerate(cells):
            digit = draw.integers(len(images))
            row, column = np.array(divmod(cell, 2)) * CELL + draw.integers(0, CELL - 8 + 1, 2)
            canvas[row : row + 8, column : column + 8] = images[digit]
            label[classes[digit]] = 1
            if order == 0:
                number[:] = len(cells), row, column
    return canvases, labels, numbers


def _split(config: CanvasConfig, name: str, form: str) -> ArraySplit:
    place, count = (0, config.train_examples) if name == "train" else (1, config.test_examples)
    images, labels, numbers = compose(load_digits()[place], count, seed=place)
    targets = labels if form == "labels" else numbers
    targets[np.random.default_rng([7, place]).random(targets.shape) < config.unknown] = np.nan
    return ArraySplit(images, targets.astype(np.float32), config.WHITE)


def open_labels(config: CanvasConfig, seed: int) -> Source:
    train, test = (_split(config, name, "labels") for name in ("train", "test"))
    return Source(train, test, len(LABELS), class_names=LABELS)


def open_numbers(config: CanvasConfig, seed: int) -> Source:
    train, test = (_split(config, name, "numbers") for name in ("train", "test"))
    return Source(train, test, len(NUMBERS), class_names=NUMBERS)


def register() -> None:
    register_data("canvas_labels", open_labels, CanvasConfig, targets="labels")
    register_data("canvas_numbers", open_numbers, CanvasConfig, targets="numbers")


if __name__ == "__main__":
    register()
    accumtrain.main()
