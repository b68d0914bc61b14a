"""Write canvases of garments as npz files: which garments are on each; and how many, and where the first one is.

Canvases of 56 x 56 pixels have up to 4 images of Fashion-MNIST (Debian's package dataset-fashion-mnist). Those to train
on have its training images, those to test on its test images.

    .venv/bin/python benchmarks/canvases.py garments
    accumtrain task=multilabel data=npz data.path=garments/labels.npz model=resnet20 optim=adam train.epochs=3
    accumtrain task=regress data=npz data.path=garments/numbers.npz model=resnet20 optim=adam train.epochs=3
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")
NAMES = ["top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]
SIDE, PLACES = 28, 4
TRAIN, TEST = 12_000, 2_000  # canvases


def read_idx(name: str, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress((FOLDER / name).read_bytes()), np.uint8, offset=header)


def compose(split: str, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return canvases uint8 [N, 56, 56, 1], labels [N, 10], and numbers [N, 3]: how many, row and column of the first.

    The place of a canvas without a garment is unknown.
    """
    images = read_idx(f"{split}-images-idx3-ubyte.gz", 16).reshape(-1, SIDE, SIDE)
    kinds = read_idx(f"{split}-labels-idx1-ubyte.gz", 8)
    canvases = np.zeros([count, 2 * SIDE, 2 * SIDE, 1], np.uint8)
    labels, numbers = np.zeros([count, len(NAMES)], np.float32), np.full([count, 3], np.nan, np.float32)
    for place in range(count):
        corners = np.sort(random.permutation(PLACES)[: random.integers(PLACES + 1)])
        numbers[place, 0] = len(corners)
        for number, corner in enumerate(corners):
            row, column = SIDE * (corner // 2), SIDE * (corner % 2)
            chosen = random.integers(len(images))
            canvases[place, row : row + SIDE, column : column + SIDE, 0] = images[chosen]
            labels[place, kinds[chosen]] = 1.0
            if number == 0:
                numbers[place, 1:] = row + SIDE / 2, column + SIDE / 2
    return canvases, labels, numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    (train, train_labels, train_numbers), (test, test_labels, test_numbers) = (
        compose(split, count, random) for split, count in (("train", TRAIN), ("t10k", TEST))
    )
    for name, names, targets, test_targets in (
        ("labels", NAMES, train_labels, test_labels),
        ("numbers", ["garments", "row", "column"], train_numbers, test_numbers),
    ):
        arrays = {"images": train, "labels": targets, "test_images": test, "test_labels": test_targets}
        np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, names=np.array(names), **arrays)


if __name__ == "__main__":
    main()
