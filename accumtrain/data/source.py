"""`Split`, `ArraySplit`, `Source`, `Dataset`, `Subset`, hold out, labels, fingerprint."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from accumtrain.data.augment import Mix
from accumtrain.data.preprocess import Preprocess
from accumtrain.data.stream import UNREADABLE
from accumtrain.errors import DataError

# Errors about a single example, which say its name and what is wrong with it.


class BadExample(DataError):
    """An example that can't be used.

    Attributes:
        name: A file, or a record of a file.
        reason: What is wrong with it, to be read after its name.
        remedy: What to do about it.
    """

    def __init__(self, name: str, reason: str, remedy: str, otherwise: str = "") -> None:
        super().__init__(f"{name} {reason}: {remedy}{otherwise}")
        self.name, self.reason, self.remedy = name, reason, remedy


class UnreadableExample(BadExample):
    """An example that can't be read or decoded. data.on_error=skip goes on without it."""

    def __init__(self, name: str, reason: str, remedy: str = "replace or remove it") -> None:
        super().__init__(name, reason, remedy, ", or set data.on_error=skip to go on without it")


# A source of examples: two or three splits, each of which returns images and labels by example index.


SPLIT_WORDS = {"train": "training", "val": "validation", "test": "test"}  # in the order in which they are told


class Split(ABC):
    """A fixed number of examples, addressed by index.

    Attributes:
        size: Number of examples.
        image_shape: [height, width, channels] of the stored images; None if they may differ.
        channels: 1 or 3.
        white: The value of a uint8 pixel that means 1.0.
        known_labels: All labels, integers [size], where they are known; labels.py reads them.
    """

    size: int
    image_shape: tuple[int, int, int] | None
    channels: int
    white: int = 255
    known_labels: np.ndarray | None = None

    @abstractmethod
    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Images and labels, int32 [n], of the examples `index`, int64 [n]; called in graphs.

        Images are uint8 (0..white) or float32 (0..1) [n, height, width, channels]; those of an EncodedSplit are string
        [n].
        """

    def weights(self, index: tf.Tensor) -> tf.Tensor:
        """Weights, float32 [n], of the examples `index`, int64 [n]: 0 for those left out; called in graphs."""
        return tf.ones_like(index, tf.float32)

    @property
    def skipped(self) -> dict[int, BadExample]:
        """The examples left out so far (data.on_error=skip) by their index, in the split's order."""
        return {}

    @property
    def whole(self) -> Split:
        """The split that this one is a part of, or itself."""
        return self

    def in_whole(self, index: tf.Tensor) -> tf.Tensor:
        """The places of the examples `index`, int64 [n], in `whole`; called in graphs."""
        return index


class ArraySplit(Split):
    """A split of arrays in memory.

    Args:
        images: [size, height, width, channels]: floats 0..1, which are stored as float32, or integers 0..white, which
            are stored as uint8.
        labels: [size], integers.
        white: The value of an integer pixel that means 1.0.
        weights: float32 [size], 0 for examples that are left out; None is 1 for all.
    """

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, white: int = 255, weights: np.ndarray | None = None
    ) -> None:
        self.size, self.known_labels = len(images), labels
        self.image_shape = images.shape[1:]
        self.channels = images.shape[-1]
        self.white = white
        with tf.device("CPU"):
            self._images = tf.constant(images, tf.float32 if images.dtype.kind == "f" else tf.uint8)
            self._labels = tf.constant(labels, tf.int32)
            self._weights = None if weights is None else tf.constant(weights, tf.float32)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(self._images, index), tf.gather(self._labels, index)

    def weights(self, index: tf.Tensor) -> tf.Tensor:
        return super().weights(index) if self._weights is None else tf.gather(self._weights, index)


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes:
        train: The examples to train on.
        test: The examples that decide nothing; None if there are only those to validate on.
        num_classes: Labels are 0..num_classes-1.
        notes: What the user should know about the source, one line each.
        class_names: The names of the classes in order; empty if they have none.
        val: The examples that choose the best state; None if the source has none, see data/holdout.py.
        fingerprint: What a continued run must find again: plain JSON values by names that a user understands, such as
            data.train.files. It depends on the content alone, not on paths or times of change.
    """

    train: Split
    test: Split | None
    num_classes: int
    notes: list[str] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    val: Split | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def splits(self) -> dict[str, Split]:
        """The splits by name: train, and val or test or both."""
        return _splits(self)


@dataclass(frozen=True)
class Dataset:
    """An opened data set: a source with its preprocessing.

    Attributes:
        train: The examples to train on.
        test: The examples that decide nothing if there are some to validate on; None if there are only those.
        num_classes: Labels are 0..num_classes-1.
        image_shape: [height, width, channels] of the images in a batch.
        preprocess: From stored images to the images in a batch.
        notes: What the user should know about the source, one line each.
        class_names: The names of the classes in order; empty if they have none.
        val: The examples that choose the best state and when to stop; without them the test examples do.
        fingerprint: That of the source, with the classes and the number of examples of each split: plain JSON values.
        mix: How training images are mixed with others.
        balanced: Whether every class appears equally often in the training stream.
        labels: What stands for each label that is stored; None if they stand for themselves.
    """

    train: Split
    test: Split | None
    num_classes: int
    image_shape: tuple[int, ...]
    preprocess: Preprocess
    notes: list[str] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    val: Split | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    mix: Mix = field(default_factory=Mix)
    balanced: bool = False
    labels: list[int] | None = None

    fills_last_batch: ClassVar[bool] = True  # of an evaluation, with copies of weight 0

    @property
    def facts(self) -> str:
        """What the banner says about the data."""
        shape = " x ".join(map(str, self.image_shape))
        left_out = f", {len(self.skipped):,} more left out" if self.skipped else ""
        return f"{self.sizes} images, {shape}, {self.num_classes} classes{left_out}"

    @property
    def classes(self) -> list[str]:
        """A name for each class: its number if it has none."""
        return self.class_names or [str(number) for number in range(self.num_classes)]

    @property
    def splits(self) -> dict[str, Split]:
        """The splits by name: train, and val or test or both."""
        return _splits(self)

    @property
    def watched(self) -> str:
        """The split that is evaluated while training, and chooses the best state: val, or test where there is none."""
        return "test" if self.val is None else "val"

    @property
    def sizes(self) -> str:
        """The number of examples of each split, but for those that are known to be left out."""
        counts = [f"{split.size - len(split.skipped):,} {SPLIT_WORDS[name]}" for name, split in self.splits.items()]
        return ", ".join(counts[:-1]) + f" and {counts[-1]}"

    def shaped(self, batch: dict[str, Any], size: int) -> dict[str, Any]:
        """The same batch of image, label and weight, whose shapes are known: `size` examples."""
        if self.labels is not None:
            batch = {**batch, "label": tf.gather(self.labels, batch["label"])}
        shapes = {"image": [size, *self.image_shape], "label": [size], "weight": [size]}
        return {name: tf.ensure_shape(batch[name], shape) for name, shape in shapes.items()}

    @property
    def skipped(self) -> list[dict[str, str]]:
        """The examples that this process has left out so far (data.on_error=skip): split, name and reason of each."""
        return [
            {"split": name, "name": bad.name, "reason": bad.reason}
            for name, split in self.whole_splits.items()
            for bad in split.skipped.values()
        ]

    @property
    def whole_splits(self) -> dict[str, Split]:
        """The splits as they are stored: train holds the examples that are held out of it, too."""
        stored: dict[str, Split] = {}
        for name, split in self.splits.items():
            if not any(split.whole is each for each in stored.values()):
                stored[name] = split.whole
        return stored


def _splits(source: Source | Dataset) -> dict[str, Split]:
    splits = {name: getattr(source, name) for name in SPLIT_WORDS}
    return {name: split for name, split in splits.items() if split is not None}


# What a continued run must find again: facts about a data set that change when its content does.


_HEX_DIGITS = 16


def fingerprint_of(source: Source) -> dict[str, Any]:
    """The fingerprint of an opened source: what it says of itself, its classes and the sizes of its splits."""
    return {
        "data.classes": source.class_names or source.num_classes,
        **{f"data.{name}.examples": split.size for name, split in source.splits.items()},
        **source.fingerprint,
    }


def hash_texts(parts: Iterable[str]) -> str:
    """A short SHA-256 of texts in their order, such as the names of files relative to the data set's folder."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        state.update(len(encoded).to_bytes(8, "little") + encoded)
    return state.hexdigest()[:_HEX_DIGITS]


# The labels of a whole split, read once: for class weights and for balanced sampling.


_CHUNK = 1024


def labels_of(split: Split) -> np.ndarray:
    """The label of every example, int32 [size]. The first call reads the split, record files from end to end.

    Raises:
        tf.errors.OpError: an example can't be read; `planning.tensorflow_errors.in_user_words` says which.
    """
    if split.known_labels is None:
        split.known_labels = _read_labels(split)
    return split.known_labels


def class_counts(split: Split, num_classes: int) -> list[int]:
    """How many examples of each class a split holds that can be read."""
    labels = labels_of(split)
    counts: list[int] = np.bincount(labels[labels != UNREADABLE], minlength=num_classes).tolist()
    return counts


def _read_labels(split: Split) -> np.ndarray:
    def read(start: tf.Tensor) -> tf.Tensor:
        image, label = split.read(tf.range(start, tf.minimum(start + _CHUNK, split.size)))
        # of an example that is left out there is no image
        return tf.where(image == b"", UNREADABLE, label) if image.dtype == tf.string else label

    chunks = tf.data.Dataset.range(0, split.size, _CHUNK).map(read)
    return np.concatenate(list(chunks.as_numpy_iterator()))
