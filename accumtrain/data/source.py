"""The parts of every source of examples: splits of images and labels, and the data set that they become.

A `Split` returns images and labels by the index of an example. A `Source` is the splits that were opened, a `Dataset`
adds their preprocessing. Errors about a single example say its name and its fault.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from accumtrain.console import format_bytes
from accumtrain.data.images.augment import Mix
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.targets.base import TargetReader
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.data.text.config import DocumentRows
from accumtrain.errors import DataError
from accumtrain.fields import CLASSES, MASKS, TOKENS
from accumtrain.process.machine import spare_bytes

SPLIT_WORDS = {"train": "training", "val": "validation", "test": "test"}  # in the order of messages
_HEX_DIGITS = 16
_CHUNK = 1024
_COPIES = 3  # of examples while they are joined: in parts, in one array, and in TensorFlow's memory


# ---- examples that can't be used ----


class BadExample(DataError):
    """An example that can't be used.

    Attributes:
        name: A file, or a record of a file.
        reason: Its fault, to be read after its name.
        fault: Both.
        remedy: The way out.
    """

    def __init__(self, name: str, reason: str, remedy: str, otherwise: str = "") -> None:
        super().__init__(f"{name} {reason}: {remedy}{otherwise}")
        self.name, self.reason, self.fault, self.remedy = name, reason, f"{name} {reason}", remedy


class UnreadableExample(BadExample):
    """An example that can't be read or decoded. data.on_error=skip goes on without it."""

    def __init__(self, name: str, reason: str, remedy: str = "replace or remove it") -> None:
        super().__init__(name, reason, remedy, ", or set data.on_error=skip to go on without it")


class Split(ABC):
    """A fixed number of examples, addressed by index.

    Attributes:
        size: Number of examples.
        shape: [height, width, channels] of the stored images; None if they may differ.
        channels: 1 or 3.
        white: The value of a uint8 pixel that means 1.0.
        known_labels: All labels, integers [size] or float32 [size, T], where they are known; `read_labels` reads them.
        files: The file of each example, where each has one.
        locate: From an example's index to its place in words, where it has no name of its own but has a place.
        groups: The number of each example's group, int32 [size]: no group is torn apart. None: each is by itself.
        lengths: The number of each example's tokens, int32 [size]; None of other inputs.
        pixels: Height and width of each image, upright, int [size, 2]; None if they are not known.
        position_counts: The number of each example's positions of each class, int64 [size, C]; None of other targets.
        left_out: What could not be made examples of (data.on_error=skip).
    """

    size: int
    shape: tuple[int, int, int] | None
    channels: int
    white: int = 255
    known_labels: np.ndarray | None = None
    files: Sequence[Path] = ()
    locate: Callable[[int], str] | None = None
    groups: np.ndarray | None = None
    lengths: np.ndarray | None = None
    pixels: np.ndarray | None = None
    position_counts: np.ndarray | None = None
    left_out: Sequence[BadExample] = ()

    @abstractmethod
    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return images and labels of the examples `index`, int64 [n]; called in graphs.

        Images are uint8 (0..white) or float32 (0..1) [n, height, width, channels]; those of an EncodedSplit are string
        [n]. Labels are int32 [n], or float32 [n, T].
        """

    def weights(self, index: tf.Tensor) -> tf.Tensor:
        """Return weights, float32 [n], of the examples `index`, int64 [n]: 0 for those left out; called in graphs."""
        return tf.ones_like(index, tf.float32)

    @property
    def skipped(self) -> dict[int, BadExample]:
        """The examples left out so far (data.on_error=skip) by their index, in the split's order."""
        return {}

    @property
    def sizes(self) -> Sequence[int]:
        """The bytes of each of the `files`; -1 for one that is not there."""
        return ()

    @property
    def ranges(self) -> Sequence[tuple[str, int, int]]:
        """Path, first record, and the one after the last, where the examples are records of files."""
        return ()

    @property
    def whole(self) -> Split:
        """The split that this one is a part of, or itself."""
        return self

    @property
    def undivided(self) -> Split:
        """The split whose examples this one has in parts, or itself."""
        return self

    def in_whole(self, index: tf.Tensor) -> tf.Tensor:
        """Return the indices in `whole` of the examples `index`, int64 [n]; called in graphs."""
        return index

    def joined_with(self, others: Sequence[Split]) -> Split:
        """Return the examples of this split and of others, of the same kind, in their order.

        Raises:
            DataError: They do not fit in memory.
        """
        splits = [self, *others]
        example, _ = self.read(tf.range(1, dtype=tf.int64))
        size = _COPIES * example.numpy().nbytes * sum(split.size for split in splits)
        if size > (spare := spare_bytes()):
            raise DataError(
                f"all examples together take {format_bytes(size)}, and {format_bytes(spare)} of memory are free: give "
                "data with fewer examples"
            )
        inputs, targets = zip(*(split.read(tf.range(split.size, dtype=tf.int64)) for split in splits), strict=True)
        return ArraySplit(np.concatenate(inputs), np.concatenate(targets), self.white)


class ArraySplit(Split):
    """A split of arrays in memory.

    Args:
        images: [size, height, width, channels]: floats 0..1, which are stored as float32, or integers 0..white, which
            are stored as uint8. Or other inputs: floats [size, ...], or tokens, integers [size, T], as int32.
        labels: [size] integers, the classes; or [size, K] floats, of labels or numbers.
        white: The value of an integer pixel that means 1.0.
        weights: float32 [size], 0 for examples that are left out; None is 1 for all.
    """

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, white: int = 255, weights: np.ndarray | None = None
    ) -> None:
        self.size, self.known_labels = len(images), labels
        self.shape = images.shape[1:]
        self.channels = images.shape[-1]
        self.white = white
        with tf.device("CPU"):
            integer = tf.int32 if images.ndim == 2 else tf.uint8
            self._images = tf.constant(images, tf.float32 if images.dtype.kind == "f" else integer)
            self._labels = tf.constant(labels, tf.float32 if labels.dtype.kind == "f" else tf.int32)
            self._weights = None if weights is None else tf.constant(weights, tf.float32)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(self._images, index), tf.gather(self._labels, index)

    def weights(self, index: tf.Tensor) -> tf.Tensor:
        return super().weights(index) if self._weights is None else tf.gather(self._weights, index)


class Stream(Split):
    """Examples that come in an order of their own and are read from a position on.

    Position p counts the examples of all passes. `size` of them are an epoch, which need not be a pass.

    Attributes:
        failure: what code of the user has raised while it was read; None before.
    """

    shape = None
    channels = 1
    failure: Exception | None = None

    @abstractmethod
    def batches_from(self, position: int, batch: int) -> tf.data.Dataset:
        """Return batches of `batch` examples from a position on, without end: inputs and targets as `read` does."""

    @abstractmethod
    def batches_once(self, batch: int) -> tf.data.Dataset:
        """Return every example once, in batches of `batch` examples, of which the last may be smaller."""

    @abstractmethod
    def explain(self, error: tf.errors.OpError) -> DataError | None:
        """Return the DataError behind an error raised while iterating over batches; None if it has another cause."""

    def read(self, index: tf.Tensor) -> tuple[Any, Any]:
        """Return the examples `index`, int64 [n], of the first pass. All before the last of them are read, too."""
        first = next(iter(self.batches_once(int(tf.reduce_max(index)) + 1)))
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, index), first)


@dataclass(frozen=True)
class Wanted:
    """An opener's second argument: (config, wanted) -> Source.

    Attributes:
        seed: Decides the examples of a source that makes its own.
        reader: The way to read the targets. A source with one form of them needs none; None: tokens are the targets.
        of_run: The trained run that all examples are for. None is held out, and they are read as the run read its own.
            None: they are to be trained on.
        begun: The inputs of the run that is trained on them, if it has begun and they are texts by a tokenizer's file.
        rows: The way in which texts become rows of tokens and of those that follow; None if they do not.
    """

    seed: int = 0
    reader: TargetReader | None = field(default_factory=ClassTargets)
    of_run: TrainedOn | None = None
    begun: Inputs | None = None
    rows: DocumentRows | None = None


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes:
        train: The examples to train on.
        test: The examples that decide nothing if there are some to validate on; None if there are only those.
        num_classes: Labels are 0..num_classes-1.
        notes: Facts that the user should know about the source, one line each.
        class_names: The names of the classes in order; empty if they have none.
        val: The examples that choose the best state and the end of training; without them the test examples do.
        fingerprint: Facts that a continued run must find again, because they change when the content does. They are
            plain JSON values by names that a user understands, such as data.train.files. Paths and times of change
            have no part in them.
        inputs: What a model takes of an example; None of images, whose preparation the keys of data= decide.
    """

    train: Split
    test: Split | None
    num_classes: int
    notes: list[str] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    val: Split | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    inputs: Inputs | None = None

    @property
    def splits(self) -> dict[str, Split]:
        """The splits by name: train, and val or test or both."""
        splits = {name: getattr(self, name) for name in SPLIT_WORDS}
        return {name: split for name, split in splits.items() if split is not None}

    @property
    def classes(self) -> list[str]:
        """The names of the classes, or their numbers."""
        return self.class_names or [str(number) for number in range(self.num_classes)]


@dataclass(frozen=True, kw_only=True)
class Dataset(Source):
    """An opened data set: a source, and how its examples become batches.

    Attributes:
        inputs: What a model takes of an example.
        mix: MixUp and CutMix of training images.
        balanced: True lets every class appear equally often in the training stream.
        by_length: True lets training examples of similar length come after each other.
        targets: The form of the targets (tasks/config.py).
        to_target: From stored targets [n, ...] to those in a batch; None if they are the same.
        make_batch: From inputs, targets and weight of examples, and their key, uint64 [n], to those in a batch, for
            what is drawn for each example; None if they are the same.
        fills_last_batch: The last batch of an evaluation is filled up with copies of weight 0.
    """

    inputs: Inputs
    mix: Mix = field(default_factory=Mix)
    balanced: bool = False
    by_length: bool = False
    targets: str = CLASSES
    to_target: Callable[[tf.Tensor], tf.Tensor] | None = None
    make_batch: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    fills_last_batch: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example in a batch."""
        return self.inputs.shape

    @property
    def longest(self) -> Dataset:
        """The same data with all batches as long as the longest, to measure the memory that they take."""
        return replace(self, inputs=self.inputs.longest)

    @property
    def facts(self) -> str:
        """The line of the banner about the data."""
        left_out = f", {len(self.skipped):,} more left out" if self.skipped else ""
        targets = CLASSES if self.targets == MASKS else self.targets
        targets = targets if self.num_classes != 1 else targets.removesuffix("s")
        told = "" if self.targets == TOKENS or not self.num_classes else f", {self.num_classes} {targets}"
        shape = self.inputs.describe()
        return ", ".join([f"{self.sizes} {self.inputs.examples}", *([shape] if shape else [])]) + told + left_out

    @property
    def evaluated_split(self) -> str:
        """The split that is evaluated while training, and chooses the best state: val, or else test."""
        return "test" if self.val is None else "val"

    @property
    def sizes(self) -> str:
        """The number of examples of each split in words, but for those that are known to be left out."""
        undivided = {name: split.undivided for name, split in self.splits.items()}
        counts = [f"{split.size - len(split.skipped):,} {SPLIT_WORDS[name]}" for name, split in undivided.items()]
        return ", ".join(counts[:-1]) + f" and {counts[-1]}"

    @property
    def skipped(self) -> list[dict[str, str]]:
        """The examples that this process has left out so far (data.on_error=skip): split, name and reason of each."""
        return [
            {"split": name, "name": bad.name, "reason": bad.reason}
            for name, split in self.whole_splits.items()
            for bad in (*split.left_out, *split.skipped.values())
        ]

    @property
    def whole_splits(self) -> dict[str, Split]:
        """The splits as they are stored: train holds the examples that are held out of it, too."""
        stored: dict[str, Split] = {}
        for name, split in self.splits.items():
            whole = split.undivided.whole
            if not any(whole is other for other in stored.values()):
                stored[name] = whole
        return stored


def unlabelled(split: Split, inputs: Inputs, notes: Sequence[str] = ()) -> Dataset:
    """Return examples that a trained run is asked, as the test split of a data set."""
    return Dataset(train=split, test=split, num_classes=0, notes=list(notes), inputs=inputs)


# ---- fingerprint ----


def compute_fingerprint(source: Source) -> dict[str, Any]:
    """Return the fingerprint of an opened source: its own, its classes and the sizes of its splits."""
    return {
        "data.classes": source.class_names or source.num_classes,
        **{f"data.{name}.examples": split.size for name, split in source.splits.items()},
        **source.fingerprint,
    }


def hash_texts(parts: Iterable[str]) -> str:
    """Return a short SHA-256 of texts in their order, such as the names of files relative to the data set's folder."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        state.update(len(encoded).to_bytes(8, "little") + encoded)
    return state.hexdigest()[:_HEX_DIGITS]


def hash_arrays(*arrays: np.ndarray) -> str:
    """Return a short SHA-256 of the values of arrays in their order."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()[:_HEX_DIGITS]


# ---- targets ----

Target: TypeAlias = int | tuple[float | None, ...]  # a class; or labels or numbers, None for an unknown one


def read_target(stored: Any) -> Target:
    """Return the target of an example, which is stored as an integer, or as floats [K] with NaN for unknown ones."""
    values = np.asarray(stored)
    return tuple(None if np.isnan(value) else value for value in values.tolist()) if values.ndim else int(values)


def contradict(targets: Iterable[Target]) -> bool:
    """Return whether targets can't be those of one image: its classes, or its known labels or numbers, differ."""
    rows = (target if isinstance(target, tuple) else (target,) for target in targets)
    return any(len(set(column) - {None}) > 1 for column in zip(*rows, strict=True))


# ---- the labels of a whole split ----


def read_labels(split: Split) -> np.ndarray:
    """Return the labels of every example, int32 [size] or float32 [size, K].

    The first call reads the split, record files from end to end. Class weights and balanced sampling need them.

    Raises:
        tf.errors.OpError: an example can't be read; `explain_input_error` of open_data.py says which.
    """

    def read(start: tf.Tensor) -> tf.Tensor:
        image, label = split.read(tf.range(start, tf.minimum(start + _CHUNK, split.size)))
        if not tf.is_tensor(image) or image.dtype != tf.string:
            return label
        left_out = tf.reshape(image == b"", [-1, *[1] * (label.shape.rank - 1)])  # such an example has no image
        return tf.where(left_out, tf.constant(np.nan if label.dtype.is_floating else UNREADABLE, label.dtype), label)

    if split.known_labels is None:
        chunks = tf.data.Dataset.range(0, split.size, _CHUNK).map(read)
        split.known_labels = np.concatenate(list(chunks.as_numpy_iterator()))
    return split.known_labels


def class_counts(split: Split, num_classes: int) -> list[int]:
    """Return the number of examples of each class that can be read."""
    labels = read_labels(split)
    counts: list[int] = np.bincount(labels[labels != UNREADABLE], minlength=num_classes).tolist()
    return counts
