"""The user's own images and labels: the arrays of a NumPy .npz file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from accumtrain.data.fingerprint import digest
from accumtrain.data.given_labels import BadLabels, class_numbers, class_texts
from accumtrain.data.holdout import hold_out_evenly
from accumtrain.data.npz_file import TEXTS, NpzFile
from accumtrain.data.pixel_scale import Pixels, find_white
from accumtrain.data.source import ArraySplit, Source
from accumtrain.errors import DataError
from accumtrain.kinds.sources import NpzConfig

_NAMED = 5


def open_npz(config: NpzConfig, seed: int) -> Source:
    """The arrays of images and labels, and the test arrays or a part held out. The seed changes nothing.

    Raises:
        DataError: The file can't be read, or has no valid arrays of images and labels.
    """
    path = config.path
    with NpzFile.opened(path) as file:
        prefixes = file.prefixes
        for prefix in prefixes.values():  # before anything is read, which may take all memory
            file.check_headers(prefix)
        labels = _numbered(path, {f"{prefix}labels": file.array(f"{prefix}labels") for prefix in prefixes.values()})
        images = {split: _with_channels(file.array(f"{prefix}images")) for split, prefix in prefixes.items()}
    for other_images in images.values():
        _check_shapes(path, images["train"], other_images, resized=config.pixels is not None)
    pixels = [Pixels(f"{prefixes[split]}images", each.dtype, each.min(), each.max()) for split, each in images.items()]
    white, notes = find_white(path, pixels, config.scale)
    examples = {
        split: (_scaled(images.pop(split), white), labels.classes[f"{prefix}labels"])
        for split, prefix in prefixes.items()
    }
    _check_each_is_trained(path, labels, examples["train"][1])
    if len(examples) == 1:
        stored, classes = examples["train"]
        test = _hold_out(path, labels, classes, config.test_fraction)
        examples = {"train": (stored[~test], classes[~test]), "test": (stored[test], classes[test])}
    splits = {split: ArraySplit(*each, white) for split, each in examples.items()}
    return Source(
        splits["train"],
        splits.get("test"),
        labels.num_classes,
        notes,
        class_names=labels.names,
        val=splits.get("val"),
        fingerprint={"data.arrays": digest(file.checksums)},
    )


@dataclass(frozen=True)
class _Labels:
    """The labels of all arrays.

    Attributes:
        classes: The class of each example, int64 [N], by name of the array.
        names: The names of the classes; empty if they are numbered.
    """

    classes: dict[str, np.ndarray]
    num_classes: int
    names: list[str]

    def name(self, number: int) -> str:
        return self.names[number] if self.names else str(number)


def _numbered(path: str, labels: Mapping[str, np.ndarray]) -> _Labels:
    texts = {name: each.dtype.kind in TEXTS for name, each in labels.items()}
    if len(set(texts.values())) > 1:
        raise DataError(f"{path}: {' and '.join(texts)} are texts and numbers: save all as the one or the other")
    classes: dict[str, np.ndarray] = {}
    for name, each in labels.items():
        try:
            classes[name] = class_texts(each) if texts[name] else class_numbers(each)
        except BadLabels as bad:
            raise DataError(f"{path}: {name} {bad}") from bad
    if any(texts.values()):
        names = np.unique(np.concatenate(list(classes.values())))
        return _Labels(
            {name: np.searchsorted(names, each) for name, each in classes.items()}, len(names), names.tolist()
        )
    columns = [each.shape[1] for each in labels.values() if each.ndim == 2]
    return _Labels(classes, max([*columns, *(int(each.max()) + 1 for each in classes.values())]), [])


def _with_channels(images: np.ndarray) -> np.ndarray:
    return images[..., None] if images.ndim == 3 else images


def _scaled(images: np.ndarray, white: int) -> np.ndarray:
    """Integers as uint8, 0..white; floats as float32, 0..1."""
    if images.dtype.kind != "f":
        return images.astype(np.uint8, copy=False)
    images = images.astype(np.float32, copy=False)
    images /= white
    return np.clip(images, 0, 1, out=images)


def _check_shapes(path: str, images: np.ndarray, test_images: np.ndarray, *, resized: bool) -> None:
    first = 3 if resized else 1
    if images.shape[first:] != test_images.shape[first:]:
        train, test = (" x ".join(map(str, shape[1:])) for shape in (images.shape, test_images.shape))
        raise DataError(
            f"{path}: images are {train}, those to evaluate on {test}: "
            "they must have the same channels and, unless data.image_size is set, the same size"
        )


def _hold_out(path: str, labels: _Labels, classes: np.ndarray, fraction: float) -> np.ndarray:
    """A mask of the test examples: of n in a class round(n * fraction), but at least one, evenly spaced in the file."""
    test = np.zeros(len(classes), bool)
    found, counts = np.unique(classes, return_counts=True)
    by_class = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    for number, members in zip(found.tolist(), by_class, strict=True):
        if len(members) < 2:
            raise DataError(
                f"{path}: class {labels.name(number)} has a single example: it takes two, to train and to test, "
                "or the arrays test_images and test_labels"
            )
        test[members[hold_out_evenly(len(members), fraction)]] = True
    return test


def _check_each_is_trained(path: str, labels: _Labels, classes: np.ndarray) -> None:
    """Raises DataError unless there are two classes or more, and examples to train on of each."""
    count, found = labels.num_classes, np.unique(classes)
    if count < 2:
        raise DataError(f"{path}: all labels are {labels.name(0)}: it takes two classes or more to tell apart")
    missing = np.setdiff1d(np.arange(min(count, len(found) + _NAMED)), found)[:_NAMED].tolist()
    if missing:
        more = ", ..." if count - len(found) > len(missing) else ""
        numbered = "" if labels.names else f"labels run up to {count - 1}, but "
        raise DataError(
            f"{path}: {numbered}there is no example to train on of class {', '.join(map(labels.name, missing))}{more}: "
            + ("number the classes from 0 without gaps, or add examples" if numbered else "add examples")
        )
