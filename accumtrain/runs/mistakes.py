"""The worst mistakes of an evaluation, and the sheet of their images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accumtrain.runs.curves import new_figure, save_figure
from accumtrain.runs.drawn_names import drawn_names

ACROSS = 6  # images in a row
NAME_WIDTH = 20  # characters
SMALL = 96  # pixels of a side up to which each is drawn as a square


@dataclass(frozen=True)
class Mistake:
    """An example that is taken for another class.

    `position`: its place in the split. `label`, `predicted`: numbers of classes. `loss`: its cross-entropy.
    `probability`: that of the predicted class.
    """

    position: int
    label: int
    predicted: int
    loss: float
    probability: float

    @property
    def label_probability(self) -> float:
        return math.exp(-self.loss)


def draw_mistakes(images: Any, mistakes: Sequence[Mistake], class_names: Sequence[str], path: Path) -> None:
    """Draws the images as a sheet, each with its true and its predicted class and the probability of both.

    Args:
        images: float [n, height, width, channels], 0..1; 1 or 3 channels. n is at least 1.
        path: the PNG file, which is replaced as a whole.

    Raises:
        CheckpointError: the file can't be written; it is unchanged then.
    """
    names = drawn_names(class_names, NAME_WIDTH)
    down = -(-len(mistakes) // ACROSS)
    figure = new_figure(2 * ACROSS, 2.4 * down)
    grid = figure.subplots(down, ACROSS, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, image, mistake in zip(grid.flat, images, mistakes, strict=False):  # the last row may not be full
        smooth = "antialiased" if max(image.shape[:2]) > SMALL else "nearest"
        axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1, interpolation=smooth)
        axes.set_title(
            f"true: {names[mistake.label]} ({mistake.label_probability:.2g})\n"
            f"predicted: {names[mistake.predicted]} ({mistake.probability:.2g})",
            fontsize=7.5,
            loc="left",
        )
    save_figure(figure, path)
