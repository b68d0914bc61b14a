"""The files that the examples of data sources name, and what is wrong with them in one case each."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.errors import AccumtrainError, ConfigError, DataError
from tests.contract.examples import EXAMPLES
from tests.data.conftest import example, picture

CLASSES = 3
SPLITS = {"train": range(17), "test": range(100, 105)}  # numbers of pictures; their labels go round the classes


def png(number: int) -> bytes:
    return tf.io.encode_png(picture(number)).numpy()


def write_folder() -> None:
    for split, numbers in SPLITS.items():
        for number in numbers:
            file = Path("photos", split, f"class{number % CLASSES}", f"{number:03}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(number))


def write_table() -> None:
    """Labels go round the classes; the images are named without their ending, and lie in a folder beside the table."""
    Path("labelled", "images").mkdir(parents=True, exist_ok=True)
    rows = ["id,label"]
    for number in range(22):
        Path("labelled", "images", f"{number:03}.png").write_bytes(png(number))
        rows.append(f"{number:03},class{number % CLASSES}")
    Path("labelled", "labels.csv").write_text("\n".join(rows))


def write_npz() -> None:
    arrays: dict[str, Any] = {}
    for prefix, numbers in (("", SPLITS["train"]), ("test_", SPLITS["test"])):
        arrays[f"{prefix}images"] = np.stack([picture(number) for number in numbers])
        arrays[f"{prefix}labels"] = np.array(numbers) % CLASSES
    np.savez("mine.npz", **arrays)


def write_tfrecord() -> None:
    for split, numbers in SPLITS.items():
        for shard in range(2):
            with tf.io.TFRecordWriter(f"{split}-{shard}") as writer:
                for number in numbers[shard::2]:
                    writer.write(example({"image": png(number), "label": number % CLASSES}))


def write_tfds() -> None:
    import tensorflow_datasets as tfds

    def pictures(numbers: range) -> list[tuple[int, dict[str, Any]]]:
        return [(number, {"image": picture(number), "label": number % CLASSES}) for number in numbers]

    features = {"image": tfds.features.Image(shape=(6, 6, 3)), "label": tfds.features.ClassLabel(num_classes=CLASSES)}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="contract_pictures",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={split: pictures(numbers) for split, numbers in SPLITS.items()},
        data_dir="prepared",
        disable_shuffling=True,
    )


def write_cifar_binary() -> None:
    """CIFAR-10: a byte of label, then 1,024 bytes of each colour. Its ten classes are all there."""
    Path("cifar").mkdir()
    parts = {"data_batch_1": range(9), "data_batch_2": range(9, 17), "test_batch": range(100, 105)}
    for file, numbers in parts.items():
        records = [bytes([number % 10]) + picture(number, 32, 32).transpose(2, 0, 1).tobytes() for number in numbers]
        Path("cifar", f"{file}.bin").write_bytes(b"".join(records))


def write_idx() -> None:
    """As Debian ships Fashion-MNIST: the files of both splits, compressed, in one folder."""
    Path("mnist").mkdir()
    for word, numbers in (("train", SPLITS["train"]), ("t10k", SPLITS["test"])):
        images = np.stack([picture(number)[..., 0] for number in numbers])
        labels = np.array(numbers) % CLASSES
        for content, values in (("images", images), ("labels", labels)):
            file = Path("mnist", f"{word}-{content}-idx{values.ndim}-ubyte.gz")
            file.write_bytes(gzip.compress(idx(values)))


def idx(values: np.ndarray) -> bytes:
    """The content of an IDX file."""
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()


def write_texts() -> None:
    """A folder for each split, and one for each class in it. A text is a number in words, which no other has."""
    for split, numbers in SPLITS.items():
        for number in numbers:
            folder = Path("texts", split, str(number % CLASSES))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:03}.txt").write_text(f"{number} " * (1 + number % 4))


WRITERS: dict[str, Callable[[], None]] = {
    "digits": lambda: None,
    "synthetic": lambda: None,
    "tfds": write_tfds,
    "folder": write_folder,
    "table": write_table,
    "npz": write_npz,
    "cifar_binary": write_cifar_binary,
    "idx": write_idx,
    "tfrecord": write_tfrecord,
    "texts": write_texts,
}


class Bad(NamedTuple):
    """Input that is refused: keys that change, a file that loses its last third, the error and words of it."""

    changes: dict[str, Any]
    cut: str | None
    error: type[AccumtrainError]
    says: str

    def config(self, name: str) -> DataConfig:
        """Make the files and the configuration."""
        WRITERS[name]()
        if self.cut is not None:
            (file,) = Path().glob(self.cut)
            file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
        return replace(EXAMPLES["data"][name], **self.changes)


BAD = {
    "digits": Bad({"mean": [0.1, 0.2, 0.3]}, None, ConfigError, r"data\.mean"),
    "synthetic": Bad({"image_size": None}, None, ConfigError, r"data\.image_size"),
    "tfds": Bad({}, "prepared/**/*train*", DataError, "contract_pictures-train"),
    "folder": Bad({}, "photos/train/class0/000.png", DataError, r"class0/000\.png"),
    "cifar_binary": Bad({}, "cifar/data_batch_2.bin", DataError, r"data_batch_2\.bin has 16389 bytes"),
    "idx": Bad({}, "mnist/t10k-images*", DataError, r"t10k-images-idx3-ubyte\.gz can't be unpacked"),
    "table": Bad({}, "labelled/images/003.png", DataError, r"images/003\.png"),
    "npz": Bad({}, "mine.npz", DataError, r"data\.path=mine\.npz"),
    "tfrecord": Bad({}, "test-1", DataError, "test-1"),
    "texts": Bad({"tokenizer": "no.json"}, None, ConfigError, r"data\.tokenizer=no\.json"),
}
