"""task=segment: each pixel of an image is of one class, or of none that is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from accumtrain.backprop.mode import EVALUATION
from accumtrain.backprop.model import Model
from accumtrain.data.images.tiles import IMAGE, MASK, TiledSplit
from accumtrain.data.inputs.scenes import Scenes
from accumtrain.data.source import Split
from accumtrain.engine.losses import Batch, Collector, sum_positions
from accumtrain.errors import DataError
from accumtrain.report.classes import Confusion
from accumtrain.report.positions import PositionReport
from accumtrain.runs.files import replacing
from accumtrain.runs.names import make_results_folder
from accumtrain.tasks.answer import AnswersInWords, round_float32
from accumtrain.tasks.classify import ClassAnswer
from accumtrain.tasks.config import PositionsConfig
from accumtrain.tasks.objective import Facts, Objective
from accumtrain.tasks.positions.confusions import ConfusionCounter

LARGEST_INDEX = 255  # of a palette
SMALL = 1e-6  # share of a class that no pixel to train on has


class Segmentation(Objective):
    """A class is learned for each pixel. The model returns logits [N, height, width, classes]."""

    def find_facts(self) -> dict[str, Any]:
        """Raise DataError if the examples are no images with masks."""
        if not isinstance(self.stored.inputs, Scenes):
            raise DataError(
                f"task=segment: the examples of {self.config.data.label} have no class for each pixel; choose "
                "data=folder or npz with masks"
            )
        return {}

    def make_batch(self, examples: dict[str, Any]) -> dict[str, Any]:
        """Return a batch whose weights of examples are their numbers of pixels that have a class."""
        masks = examples["inputs"][MASK]
        counts = sum_positions(tf.cast(masks >= 0, tf.float32))
        return {"inputs": examples["inputs"][IMAGE], "targets": masks, "weight": examples["weight"] * counts}

    def count(self) -> list[int]:
        """Return the number of pixels of each class in training."""
        return _count_pixels(self.stored.train).tolist()

    def guess(self) -> dict[str, float]:
        """Return the losses by split of a model that gives each class its share of the pixels to train on.

        They are known of a weighted cross-entropy alone.
        """
        loss = self.config.loss
        if not isinstance(loss, PositionsConfig) or loss.overlap or loss.focus:
            return {}
        counts = {name: _count_pixels(split) for name, split in self.stored.splits.items()}
        losses = -loss.entropy * np.log(np.maximum(counts["train"] / counts["train"].sum(), SMALL))
        guess = {name: float(np.average(losses, weights=count)) for name, count in counts.items() if count.any()}
        factors = self.loss_config.factors or 1.0
        return {**guess, "train": float(np.average(losses * factors, weights=counts["train"]))}

    def collectors(self, split: str, batch: int, replicas: int, *, reports: bool) -> list[Collector]:
        """Return what counts the confusions of pixels."""
        if not self.whole_metrics and not reports:
            return []
        return [ConfusionCounter(self.whole_metrics, self.stored.num_classes)]

    def report(self, collectors: Sequence[Collector], split: str, facts: Facts) -> PositionReport:
        (found,) = (collector for collector in collectors if isinstance(collector, ConfusionCounter))
        return PositionReport(Confusion(self.stored.classes, found.found.tolist()), "pixels")


class MaskAnswer(ClassAnswer):
    """The probabilities of the classes of each pixel, [N, height, width, classes]. job=predict writes masks."""

    writes = "masks"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.inputs.shape[:2], len(self.columns))

    @property
    def sizes(self) -> list[str]:
        """The shape in words: an export takes images of any size, unless data.image_size says one."""
        return super().sizes if self.inputs.resized_to else ["height", "width", str(len(self.columns))]

    def predict(self, model: Model, batch: Batch) -> tf.Tensor:
        """Return the number of the most probable class of each pixel, int32 [N, height, width]."""
        return tf.argmax(model(batch["inputs"], EVALUATION), axis=-1, output_type=tf.int32)

    def keep(self, answers: Sequence[np.ndarray] | np.ndarray, files: Sequence[Path]) -> np.ndarray:
        """Write the mask of each image, and return its number of pixels of each class, float64 [n, C].

        Args:
            answers: Classes of pixels [height, width], or their probabilities [height, width, C].
        """
        masks = [answer if answer.ndim == 2 else answer.argmax(-1) for answer in answers]
        for mask, file in zip(masks, files, strict=False):
            write_mask(mask, file)
        return np.array([np.bincount(mask.ravel(), minlength=len(self.columns)) for mask in masks], np.float64)

    def tell(self, answers: np.ndarray) -> AnswersInWords:
        """Tell the share of each class among the pixels of an image, by the numbers of pixels of `keep`."""
        shares = answers / np.maximum(answers.sum(axis=1, keepdims=True), 1)
        top = [np.argsort(-row, kind="stable")[: self.config.predict.top].tolist() for row in shares]
        totals = answers.sum(axis=0).astype(int).tolist()
        return AnswersInWords(
            columns=self.columns,
            rows=[[round_float32(share) for share in row] for row in shares.tolist()],
            records=[{"pixels": dict(zip(self.columns, row, strict=True))} for row in answers.astype(int).tolist()],
            titles=["classes by their share of the pixels"],
            shown=[
                [", ".join(f"{self.columns[number]} {row[number]:.1%}" for number in numbers if row[number])]
                for numbers, row in zip(top, shares, strict=True)
            ],
            summary={"pixels": dict(zip(self.columns, totals, strict=True))},
        )


def _count_pixels(split: Split) -> np.ndarray:
    """Return the number of pixels of each class in a split, int64 [C]."""
    counts = split.images.position_counts if isinstance(split, TiledSplit) else split.position_counts
    assert counts is not None, "masks are counted when they are opened"
    return counts.sum(0)


def write_mask(mask: np.ndarray, file: Path) -> None:
    """Write classes of pixels, int [height, width], as a PNG: their numbers, which a palette shows in colours.

    Above 256 classes it has 16 bits and is grey.

    Raises:
        CheckpointError: the file can't be written.
    """
    if int(mask.max(initial=0)) > LARGEST_INDEX:
        image = Image.fromarray(mask.astype(np.uint16))
    else:
        image = Image.fromarray(mask.astype(np.uint8), mode="P")
        image.putpalette(make_palette().tobytes())
    make_results_folder(file.parent)
    with replacing(file) as unfinished:
        image.save(unfinished, format="PNG")


def make_palette() -> np.ndarray:
    """Return 256 colours, uint8 [256, 3], as those of Pascal VOC: the bits of a number, from the lowest, in turn."""
    bits = (np.arange(256)[:, np.newaxis] >> np.arange(8)) & 1
    weights = np.zeros([8, 3], np.int64)
    for bit in range(8):  # the first three bits are the highest ones of red, green and blue
        weights[bit, bit % 3] = 128 >> (bit // 3)
    return (bits @ weights).astype(np.uint8)
