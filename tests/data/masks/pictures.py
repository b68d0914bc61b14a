"""Tiny images with masks on disk, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from accumtrain.data.config import FolderConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.source import Dataset
from accumtrain.fields import MASKS
from tests.conftest import composed

PLAIN: dict[str, Any] = {"augment": "none", "image_size": None, "mean": [0.0], "std": [1.0]}
SEGMENT = ("task=segment", "model=unet_small", "data.val_fraction=0")


def draw_mask(number: int, height: int = 6, width: int = 8, classes: int = 3) -> np.ndarray:
    """Classes of pixels, uint8 [height, width], other for each number; all classes are in it."""
    mask = np.random.default_rng(number).integers(0, classes, [height, width], np.uint8)
    mask.flat[:classes] = np.arange(classes)
    return mask


def save(file: Path, pixels: np.ndarray, mode: str | None = None, **options: Any) -> None:
    """Save pixels as an image file, whose folders are made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    if mode == "P":
        image = Image.fromarray(pixels).convert("L")
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette([(7 * number) % 256 for number in range(768)])
    image.save(file, **options)


def save_pair(folder: Path, number: int, mask: np.ndarray | None = None, **size: int) -> np.ndarray:
    """Save an image whose red, green and blue are its mask, with this in masks/. Return the mask."""
    mask = draw_mask(number, **size) if mask is None else mask
    save(folder / "images" / f"{number}.png", np.stack([mask] * 3, -1))
    save(folder / "masks" / f"{number}.png", mask)
    return mask


def save_pairs(folder: Path, count: int = 6, **size: int) -> list[np.ndarray]:
    return [save_pair(folder, number, **size) for number in range(count)]


def open_pairs(folder: Path, **keys: Any) -> Dataset:
    config = FolderConfig(**{**PLAIN, "val_fraction": 0.0, "test_fraction": 0.34, **keys}, path=str(folder))
    config.check()
    return open_data(config, 0, MASKS)


def open_composed(*overrides: str) -> Dataset:
    """Open the data of a command with task=segment."""
    return open_data(composed(*SEGMENT, *overrides).data, 0, MASKS)


def evaluate(data: Dataset, split: str = "test", batch: int = 3) -> dict[str, np.ndarray]:
    """Return images, masks and weights of an evaluation, put together."""
    elements = list(make_eval_batches(data, batch=batch, split=split).as_numpy_iterator())
    parts = {name: np.concatenate([each["inputs"][name] for each in elements]) for name in ("image", "mask")}
    return {**parts, "weight": np.concatenate([each["weight"] for each in elements])}


def count_pixels(masks: Sequence[np.ndarray], classes: int = 3) -> list[int]:
    """Return the number of pixels of each class in masks."""
    return sum(np.bincount(mask[mask >= 0], minlength=classes) for mask in map(np.int64, masks)).tolist()


def count_evaluated(found: Mapping[str, np.ndarray], classes: int = 3) -> list[int]:
    """Return the number of pixels of each class that an evaluation counts."""
    return count_pixels(list(found["mask"][found["weight"] > 0]), classes)


def name_images(data: Dataset) -> dict[str, list[str]]:
    """Return the names of the images of each split, as those of their masks follow."""
    return {name: [file.name for file in split.undivided.files] for name, split in data.splits.items()}
