"""data=npz: images and labels of one's own, or tokens, the arrays of a NumPy .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from accumtrain.console import format_things
from accumtrain.data.config import NpzConfig
from accumtrain.data.holdout import hold_out_evenly
from accumtrain.data.source import SPLIT_WORDS, ArraySplit, Source, Wanted, hash_texts
from accumtrain.data.sources.npz_file import TOKENS, NpzFile
from accumtrain.data.targets.base import Targets
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.data.text.arrays import read_token_arrays
from accumtrain.data.text.encode import check_some_are_usable, raise_first
from accumtrain.data.text.tokens import Content, divide, find_vocabulary, make_token_source
from accumtrain.errors import ConfigError, DataError

_SCALES = (1, 255)
_BEYOND = 0.25  # share of the largest values by which floats may overshoot, as after a resize with cubic weights
_LISTED = 5  # classes in a message


def open_npz(config: NpzConfig, wanted: Wanted) -> Source:
    """Return the arrays of inputs and labels, with the test arrays or a part held out; for a trained run none.

    Images without a target are left out.

    Raises:
        ConfigError: A key does not go with the data, or the tokenizer can't be opened.
        DataError: The file can't be read, or has no valid arrays of images or tokens, and of labels.
    """
    path = config.path
    with NpzFile.opened(path) as file:
        if file.inputs == TOKENS:
            content = _read_tokens(config, wanted)
            return make_token_source(
                config, content if wanted.of_run else divide(content, config.test_fraction), wanted
            )
        if wanted.reader is None:
            raise DataError(f"{path} holds no tokens, which are learned: save them, [N, T], as the array tokens")
        prefixes = file.prefixes
        for prefix in prefixes.values():
            file.check_headers(prefix)
        targets = file.read_targets(wanted.reader)
        arrays, white, notes = read_images(config, file)
    if wanted.of_run is None:
        _check_all_are_trained(path, targets["train"])
    examples = {split: (arrays[split], of_split.values) for split, of_split in targets.items()}
    for split, of_split in targets.items():
        if not of_split.known.all():
            unknown = int(np.sum(~of_split.known))
            notes.append(f"left out, without a target: {format_things(unknown, f'{SPLIT_WORDS[split]} example')}")
            examples[split] = arrays[split][of_split.known], of_split.values[of_split.known]
    if len(examples) == 1 and wanted.of_run is None:
        stored, values = examples["train"]
        test = _hold_out(path, targets["train"], values, config.test_fraction)
        examples = {"train": (stored[~test], values[~test]), "test": (stored[test], values[test])}
    splits = {split: ArraySplit(*arrays, white) for split, arrays in examples.items()}
    return Source(
        splits["train"],
        splits.get("test"),
        targets["train"].count,
        notes,
        class_names=targets["train"].names,
        val=splits.get("val"),
        fingerprint={"data.arrays": hash_texts(file.checksums)},
    )


def read_images(config: NpzConfig, file: NpzFile) -> tuple[dict[str, np.ndarray], int, list[str]]:
    """Return the images of each split, [N, height, width, channels], the value of white, and notes about it.

    Raises:
        DataError: those of the splits differ in shape, or the values have no clear range.
    """
    images = {split: file.read_array(f"{prefix}images") for split, prefix in file.prefixes.items()}
    images = {split: array[..., None] if array.ndim == 3 else array for split, array in images.items()}
    for other_images in images.values():
        _check_shapes(file.path, images["train"], other_images, resized=config.pixels is not None)
    pixels = [
        PixelRange(f"{file.prefixes[split]}images", array.dtype, array.min(), array.max())
        for split, array in images.items()
    ]
    white, notes = find_white(file.path, pixels, config.scale)
    return {split: _scale(images.pop(split), white) for split in file.prefixes}, white, notes


def _read_tokens(config: NpzConfig, wanted: Wanted) -> Content:
    reader = wanted.reader
    if not isinstance(reader, ClassTargets | None):
        raise ConfigError(
            f"data.path={config.path}: tokens of an .npz file have classes or none: choose task=classify or "
            "one that learns tokens, or give the texts as a table, data=table data.text_column=<name>"
        )
    if wanted.rows is not None and wanted.rows.end is not None:
        raise ConfigError(
            f"task.end={wanted.rows.end}: the rows of an .npz file are learned as they are; write its id at their "
            "ends, and leave it out"
        )
    vocabulary = None
    if wanted.of_run is not None or config.tokenizer != NpzConfig.tokenizer:
        vocabulary = find_vocabulary(config, replace(wanted, rows=None))
        if wanted.of_run is None and config.vocabulary is not None:
            raise ConfigError(
                f"data.vocabulary={config.vocabulary}: the tokenizer says how many ids there are; leave it out"
            )
    arrays = read_token_arrays(config, reader, vocabulary)
    for split in arrays.splits.values():
        if config.on_error == "raise":
            raise_first(split.faults)
        check_some_are_usable(split)
    names, count = (arrays.targets.names, arrays.targets.count) if arrays.targets else ([], 0)
    return Content(config.path, arrays.vocabulary, arrays.splits, names, count, [], arrays.columns)


def _scale(images: np.ndarray, white: int) -> np.ndarray:
    """Return integers as uint8, 0..white; floats as float32, 0..1."""
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


def _hold_out(path: str, targets: Targets, values: np.ndarray, fraction: float) -> np.ndarray:
    """Return a mask of the test examples: `holdout_size` of each class, or of all, evenly spaced in the file."""
    test = np.zeros(len(values), bool)
    groups = values if values.ndim == 1 else np.zeros(len(values), np.int64)
    found, counts = np.unique(groups, return_counts=True)
    by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(counts)[:-1])
    for number, members in zip(found.tolist(), by_group, strict=True):
        if len(members) < 2:
            name = f"class {_name(targets, number)}" if values.ndim == 1 else "the file"
            raise DataError(
                f"{path}: {name} has a single example: it takes two, to train and to test; "
                "add one, or the arrays test_images and test_labels"
            )
        test[members[hold_out_evenly(len(members), fraction)]] = True
    return test


def _check_all_are_trained(path: str, targets: Targets) -> None:
    """Raise DataError unless there is an example to train on, of each class if there are classes, and two of these."""
    if targets.values.ndim > 1:
        if not targets.known.any():
            raise DataError(f"{path}: no example to train on has a target: write them into the labels")
        return
    count, found = targets.count, np.unique(targets.values)
    if count < 2:
        raise DataError(f"{path}: all labels are {_name(targets, 0)}: it takes two classes or more to tell apart")
    missing = np.setdiff1d(np.arange(min(count, len(found) + _LISTED)), found)[:_LISTED].tolist()
    if missing:
        more = ", ..." if count - len(found) > len(missing) else ""
        numbered = "" if targets.names else f"labels run up to {count - 1}, but "
        names = ", ".join(_name(targets, number) for number in missing)
        raise DataError(
            f"{path}: {numbered}there is no example to train on of class {names}{more}: "
            + ("number the classes from 0 without gaps, or add examples" if numbered else "add examples")
        )


def _name(targets: Targets, number: int) -> str:
    return targets.names[number] if targets.names else str(number)


# ---- the value of white in arrays of pixels: 1 or 255, one decision for all arrays of a file ----


@dataclass(frozen=True)
class PixelRange:
    """An array of pixels by its name, its dtype, its smallest and its largest value."""

    name: str
    dtype: np.dtype
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.name} has pixels of {self.low} to {self.high}"

    @property
    def are_floats(self) -> bool:
        return self.dtype.kind == "f"

    def can_have(self, white: int) -> bool:
        """Return whether these may be pixels of 0 to `white`."""
        beyond = _BEYOND if self.are_floats else 0
        return bool(-beyond * self.high <= self.low and self.high <= white + beyond * white)  # False for NaN

    @property
    def white(self) -> int | None:
        """The value of white, as far as these pixels alone tell; None if it may be either."""
        if self.are_floats and self.can_have(1):
            return 1
        whole_range = self.low >= 0 and (self.high > 1 if not self.are_floats else 128 <= self.high <= 255)
        return 255 if whole_range else None


def find_white(file: str, arrays: Sequence[PixelRange], scale: int | str) -> tuple[int, list[str]]:
    """Return the value of white in all arrays of a file, and notes about it.

    Args:
        scale: data.scale: 1, 255, or auto, which asks the arrays.

    Raises:
        DataError: An array has other pixels, or the arrays do not tell the same.
    """
    found = {pixels.white for pixels in arrays} - {None}
    white = scale if isinstance(scale, int) else found.pop() if len(found) == 1 else None
    wrong = [pixels for pixels in arrays if white is not None and not pixels.can_have(white)]
    if white is None or wrong:
        possible = [value for value in _SCALES if all(pixels.can_have(value) for pixels in arrays)]
        remedies = [f"set data.scale={value} if {value} is white in all arrays" for value in possible]
        raise DataError(
            f"{file}: {', '.join(map(str, wrong or arrays))}, "
            + ("which does not tell the value of white" if white is None else f"and white is taken as {white}")
            + f": {', or '.join([*remedies, 'save all arrays as 0..255, or all as floats of 0..1'])}"
        )
    return white, [_describe(pixels, white) for pixels in arrays if pixels.are_floats or white == 1]


def _describe(pixels: PixelRange, white: int) -> str:
    note = f"{pixels.name} is {pixels.dtype} with a maximum of {pixels.high}: taken as 0..{white}"
    return note if pixels.low >= 0 and pixels.high <= white else f"{note}, values beyond that are cut off"
