"""Examples that are held out of those to train on: to test on, or to validate on.

Those to validate on choose the best state and the end of training, so that the test examples don't.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.console import format_things
from accumtrain.data.config import DataConfig
from accumtrain.data.local_files import ImagesByClass
from accumtrain.data.source import BadExample, Source, Split
from accumtrain.errors import ConfigError, DataError

_SEED = 0  # of a random choice: the same for every run.seed, so that runs are compared on the same examples


def holdout_size(size: int, fraction: float) -> int:
    """Return the number of examples held out of `size`: round(size * fraction), at least one, but never all."""
    return min(max(round(size * fraction), 1), size - 1)


def hold_out_evenly(size: int, fraction: float) -> np.ndarray:
    """Return the indices, int64, of the examples that are held out: evenly spaced among `size` of them."""
    held = holdout_size(size, fraction)
    return np.arange(held) * size // held


def hold_out_by_name(listing: ImagesByClass, fraction: float) -> dict[str, ImagesByClass]:
    """Split into train and test, for which `holdout_size` files of each class are held out.

    These are the ones whose names have the smallest CRC-32. So the split is the same on every machine and for every
    seed.

    Raises:
        DataError: A class has a single image.
    """
    train, test = ImagesByClass(), ImagesByClass()
    for kind, images in listing.items():
        if len(images) < 2:
            raise DataError(
                f"class {kind} has a single image, {images[0].file}: it takes two, to train and to test; add one, or "
                "remove the class"
            )
        held = holdout_size(len(images), fraction)
        by_hash = sorted(images, key=lambda image: (zlib.crc32(image.name.encode()), image))
        test[kind], train[kind] = sorted(by_hash[:held]), sorted(by_hash[held:])
    return {"train": train, "test": test}


def hold_out_groups(groups: np.ndarray, order: np.ndarray, fraction: float, labels: np.ndarray) -> np.ndarray:
    """Return a mask of the examples that are held out: all those of some groups, at most `holdout_size` of them.

    Groups are taken in an order. One that is too large for what is left is passed over, and so is one that holds the
    last examples of a class. If all are too large, the smallest is held out.

    Args:
        groups: int [N], the number of each example's group.
        order: int [G], the numbers of the groups, each once. Some may be without an example.
        labels: int [N], the class of each example.
    """
    by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups, minlength=len(order)))[:-1])
    left, room = np.bincount(labels), holdout_size(len(groups), fraction)
    held = np.zeros(len(groups), bool)

    def take(group: int, most: int) -> int:
        """Hold out a group unless it is too large, or nothing of a class would be left. Return how many these are."""
        members = by_group[group]
        taken = np.bincount(labels[members], minlength=len(left))
        if not 0 < len(members) <= most or (taken.astype(bool) & (left == taken)).any():
            return 0
        held[members] = True
        left[:] -= taken
        return len(members)

    for group in order.tolist():
        room -= take(group, room)
    smallest_first = sorted(order.tolist(), key=lambda group: len(by_group[group]))
    while not held.any() and smallest_first:
        take(smallest_first.pop(0), len(groups))
    return held


def draw_held_out(labels: np.ndarray, groups: np.ndarray | None, fraction: float) -> np.ndarray:
    """Return a mask of the examples that are held out: a share of each class, or of all groups, drawn at random.

    Args:
        labels: int [N], the class of each example.
        groups: int [N], the number of each example's group; None: each is by itself.
    """
    draw = np.random.default_rng(_SEED)
    if groups is not None:
        return hold_out_groups(groups, draw.permutation(int(groups.max()) + 1), fraction, labels)
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held[draw.permutation(members)[: holdout_size(len(members), fraction)]] = True
    return held


def hold_out_at_random(split: Split, fraction: float) -> tuple[Subset, Subset]:
    """Return the examples that are left, and those that are held out: a share of each class, drawn at random.

    If the labels are not known before the examples are read, or are no classes, they are drawn from all examples. If
    the split has groups, these are drawn.
    """
    labels = np.zeros(split.size, np.int64)
    if split.known_labels is not None and split.known_labels.ndim == 1:
        labels = split.known_labels
    held = draw_held_out(labels, split.groups, fraction)
    return Subset(split, np.flatnonzero(~held)), Subset(split, np.flatnonzero(held))


def find_fraction(own: int | None, config: DataConfig) -> float:
    """Return the share of the training examples that is held out; 0 if there are `own` examples to validate on.

    Raises:
        ConfigError: There are, and `data.val_fraction` asks for others.
    """
    if own is None:
        return config.val_share
    if config.val_fraction:
        raise ConfigError(
            f"data.val_fraction={config.val_fraction}: the data has {format_things(own, 'validation example')} of its "
            "own; leave it out"
        )
    return 0.0


def check_held_out(held: int, fraction: float, reason: str) -> None:
    """Raise DataError, which says the reason, if no example could be held out."""
    if not held:
        raise DataError(
            f"data.val_fraction={fraction:g}: {reason}; add some, or set data.val_fraction=0 to validate on the test "
            "examples"
        )


def note_held_out(held: int, fraction: float, what: str = "training example") -> str:
    counted = format_things(held, f"{what} is", f"{what}s are")
    return f"{counted} held out to validate on (data.val_fraction={fraction:g})"


def add_validation_split(source: Source, config: DataConfig) -> Source:
    """Return the source with a validation split: its own, or `data.val_fraction` of the training examples.

    Raises:
        ConfigError: the source has one of its own, and `data.val_fraction` asks for another.
        DataError: no class has two training examples.
    """
    fraction = find_fraction(None if source.val is None else source.val.size, config)
    if not fraction:
        return source
    train, val = hold_out_at_random(source.train, fraction)
    reason = "no class has the two training examples that it takes to train and to validate on"
    if source.train.groups is not None:
        reason = "no group can be held out so that each class has examples left to train on"
        if source.train.known_labels is None:
            reason = "all training examples are of one group, such as the pieces of one text, and are not divided"
    check_held_out(val.size, fraction, reason)
    return replace(source, train=train, val=val, notes=[*source.notes, note_held_out(val.size, fraction)])


class _Chosen(Sequence[Path]):
    """Some of the files of a split, which are not copied."""

    def __init__(self, files: Sequence[Path], chosen: np.ndarray) -> None:
        self._files, self._chosen = files, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Path:  # type: ignore[override]
        return self._files[int(self._chosen[index])]


class Subset(Split):
    """Some examples of a split.

    Args:
        whole: the split.
        chosen: int64 [size], indices of the examples in it, increasing.
    """

    def __init__(self, whole: Split, chosen: np.ndarray) -> None:
        self.size, self.shape = len(chosen), whole.shape
        self.channels, self.white = whole.channels, whole.white
        self.known_labels = None if whole.known_labels is None else whole.known_labels[chosen]
        self.files = _Chosen(whole.files, chosen) if whole.files else ()
        self.lengths, self.pixels, self.position_counts = (
            None if known is None else known[chosen] for known in (whole.lengths, whole.pixels, whole.position_counts)
        )
        self._whole, self._chosen = whole, chosen
        with tf.device("CPU"):
            self._indices = tf.constant(chosen, tf.int64)

    @property
    def skipped(self) -> dict[int, BadExample]:
        left_out = self._whole.skipped
        indices = np.flatnonzero(np.isin(self._chosen, list(left_out))).tolist()
        return {index: left_out[int(self._chosen[index])] for index in indices}

    @property
    def whole(self) -> Split:
        return self._whole

    def in_whole(self, index: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._indices, index)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._whole.read(self.in_whole(index))

    def weights(self, index: tf.Tensor) -> tf.Tensor:
        return self._whole.weights(self.in_whole(index))
