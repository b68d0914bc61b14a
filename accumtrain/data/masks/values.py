"""The values in masks: how they are read, and the class of each."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image, ImageOps

from accumtrain.console import format_things
from accumtrain.data.masks.config import MOST, MaskKeys
from accumtrain.errors import DataError
from accumtrain.fields import NONE, format_value

Value = int | tuple[int, ...]  # in a mask: a number, or a colour
COLOUR = 1 << 24  # added to the number of a colour, red * 2^16 + green * 2^8 + blue, to tell it from a value
BINARY = {0: 0, 255: 1}  # the values of masks of two classes
SHOWN = 12  # values in a message
MOST_CLASSES = 64  # that a remedy names
_FORMATS = ("PNG", "BMP", "TIFF", "GIF")  # of Pillow, which keep values
_SPREAD = {"L;2": 85, "L;4": 17}  # by which Pillow multiplies grey values of 2 or 4 bits
_WHOLE = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # modes of Pillow whose pixels are whole numbers
_COLOURS = ("RGB", "RGBA", "LA", "PA")


class BadMask(Exception):
    """A mask that can't be used: its fault, to be read after its name, and the remedy."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(f"{fault}: {remedy}")
        self.fault, self.remedy = fault, remedy


def read_mask(encoded: bytes) -> np.ndarray:
    """Return the values of an encoded mask, int32 [height, width]; of colours with COLOUR added to their number.

    The index of a palette is the value. A grey colour is its grey value.

    Raises:
        BadMask: it is no picture of exact values.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            is_jpeg = image.info.get("compression") == "jpeg"
            if image.format not in _FORMATS or is_jpeg:
                kind = f"{image.format} with a JPEG inside" if is_jpeg else image.format
                raise BadMask(f"is a {kind}, which may have other values than were saved", "save masks as PNG")
            if getattr(image, "n_frames", 1) > 1:
                raise BadMask(f"has {image.n_frames} pictures", "save a mask of one picture")
            if image.mode not in (*_WHOLE, *_COLOURS):
                raise BadMask(f"has pixels of the mode {image.mode}", "save whole numbers or colours as PNG")
            raw = str([tile.args for tile in image.tile])
            if image.mode in _COLOURS and "16" in raw:
                raise BadMask("has 16 bits a channel, of which 8 would be lost", "save colours of 8 bits")
            image.load()
            values = _to_values(ImageOps.exif_transpose(image))
    except BadMask:
        raise
    except Exception as error:  # Pillow raises errors of many kinds for a damaged one
        raise BadMask("can't be read as a picture", "save masks as PNG") from error
    spread = next((factor for mode, factor in _SPREAD.items() if mode in raw), 1)
    return values // spread


def _to_values(image: Image.Image) -> np.ndarray:
    if image.mode in _WHOLE:
        values = np.asarray(image).astype(np.int32)
        if values.min(initial=0) < 0 or values.max(initial=0) > MOST:
            raise BadMask(f"has values from {values.min()} to {values.max()}", f"use values from 0 to {MOST}")
        return values
    if image.mode != "RGB":
        pixels = np.asarray(image.convert("RGBA"))
        if (pixels[..., 3] != 255).any():
            raise BadMask("has transparent pixels, of which no class is known", "save it without an alpha channel")
        image = image.convert("RGB")
    return number_colours(np.asarray(image))


def number_colours(colours: np.ndarray) -> np.ndarray:
    """Return the values of colours, uint8 [height, width, 3], as `read_mask` does: int32 [height, width]."""
    red, green, blue = (colours[..., channel].astype(np.int32) for channel in range(3))
    return np.where((red == green) & (green == blue), red, COLOUR + (red << 16) + (green << 8) + blue)


def number_value(value: Value) -> int:
    """Return a value or colour of the keys as `read_mask` has it."""
    return int(number_colours(np.array([[value]], np.uint8))[0, 0]) if isinstance(value, tuple) else value


def show_value(number: int) -> str:
    """Return a value as a key has it: a number, or a colour [r,g,b]."""
    if number < COLOUR:
        return str(number)
    return format_value([number >> 16 & 255, number >> 8 & 255, number & 255])


def count_values(values: np.ndarray) -> Counter[int]:
    """Return how often each value is in a mask."""
    if values.size and values.min() >= 0 and values.max() <= MOST:  # ten times as fast
        counted = np.bincount(values.ravel())
        return Counter({int(value): int(counted[value]) for value in np.flatnonzero(counted)})
    found, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


@dataclass(frozen=True)
class MaskValues:
    """The class of each value.

    Attributes:
        names: Those of the classes; empty if they are numbered.
        classes: The number of the class of each value, NONE for one without a class.
        note: About them, for the user.
        unknown: All values of the masks that have no class, and are not ignored.
    """

    names: Sequence[str]
    classes: Mapping[int, int]
    note: str = ""
    unknown: Sequence[int] = ()

    @property
    def count(self) -> int:
        return max(self.classes.values()) + 1

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        known = np.array(sorted(self.classes), np.int32)
        return known, np.array([self.classes[value] for value in known.tolist()], np.int32)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the classes of the pixels of a mask, int32 [height, width]. Raise BadMask for a value without one."""
        known, classes = self._sorted
        places = np.minimum(np.searchsorted(known, values), len(known) - 1)
        if (unknown := known[places] != values).any():
            raise self._name_unknown(count_values(values[unknown]))
        return classes[places]

    def find_fault(self, found: Mapping[int, int]) -> BadMask | None:
        """Return what is wrong with a mask, by its number of pixels of each value."""
        unknown = {value: count for value, count in found.items() if value not in self.classes}
        return self._name_unknown(unknown) if unknown else None

    def _name_unknown(self, unknown: Mapping[int, int]) -> BadMask:
        """Return the fault of values without a class, of which the most frequent is named."""
        value = max(unknown, key=lambda each: unknown[each])
        return BadMask(
            f"has the value {show_value(value)} in {format_things(unknown[value], 'pixel')}, which is no class",
            self._suggest_for([value]),
        )

    def _suggest_for(self, values: Sequence[int]) -> str:
        """Return what to do about values, and all others, that have no class."""
        unknown = self.unknown or values
        if len(unknown) > MOST_CLASSES:
            return "save masks with the values of classes alone"
        ignored = [known for known, number in self.classes.items() if number == NONE]
        name = "name all values in data.mask_classes, or " if self.names else ""
        return f"{name}set data.ignore={suggest_ignored([*ignored, *unknown])} if such pixels have no class"

    def count_classes(self, found: Mapping[int, int]) -> np.ndarray:
        """Return the number of pixels of each class, int64 [K], by the numbers of values of a mask."""
        counts = np.zeros(self.count, np.int64)
        for value, count in found.items():
            if (number := self.classes.get(value, NONE)) != NONE:
                counts[number] += count
        return counts


def choose_values(config: MaskKeys, found: Mapping[int, int], of_run: Sequence[str] | None = None) -> MaskValues:
    """Return the classes of values in all masks, by the keys and what is found.

    Args:
        found: How often each value is there.
        of_run: The names of the classes of a trained run, whose masks these are to be like.

    Raises:
        DataError: A value has no class, and the keys do not say that it is ignored.
    """
    ignored = {number_value(value): NONE for value in config.ignored}
    if named := config.named_values:
        classes = {number_value(value): at for at, value in enumerate(named.values())} | ignored
        return MaskValues(list(named), classes, unknown=sorted(found.keys() - classes.keys()))
    values = sorted(found.keys() - ignored.keys())
    if not values:
        raise DataError(f"all pixels of the masks are ignored by data.ignore={format_value(config.ignore)}: correct it")
    if of_run is not None:
        classes = _number_as_run(values, len(of_run)) | ignored
        return MaskValues([], classes, unknown=sorted(found.keys() - classes.keys()))
    if set(values) == BINARY.keys():
        return MaskValues([], {**BINARY, **ignored}, "the values 0 and 255 of the masks are two classes, 0 and 1")
    if values[-1] == len(values) - 1 and len(values) > 1:
        return MaskValues([], {value: value for value in values} | ignored)
    raise DataError(_ask_for_classes(values, found, [*ignored]))


def _number_as_run(values: Sequence[int], count: int) -> dict[int, int]:
    """Return the classes of values as those of a run that has `count` classes: numbers, or 0 and 255 of two."""
    if count == len(BINARY) and BINARY.keys() >= set(values) and 255 in values:
        return BINARY
    return {value: value for value in range(count)}


def _ask_for_classes(values: Sequence[int], found: Mapping[int, int], ignored: Sequence[int]) -> str:
    shown = ", ".join(f"{show_value(value)} ({found[value]:,} pixels)" for value in values[:SHOWN])
    more = f" and {len(values) - SHOWN:,} more" if len(values) > SHOWN else ""
    told = f"the masks have the values {shown}{more}"
    if len(values) > MOST_CLASSES:
        return f"{told}: if they are numbers of objects, save masks whose values are classes, from 0 on"
    if len(values) == 1:
        return f"{told}, and it takes two classes to tell apart: give masks with more"
    if values[-1] == 255 and values[:-1] == [*range(len(values) - 1)] and len(values) > len(BINARY):
        instead = f"set data.ignore={suggest_ignored([*ignored, 255])}"
        return f"{told}: if 255 is no class, {instead}; or name all of them, {_suggest_classes(values)}"
    return f"{told}, which are not numbered from 0 on: name all of them, {_suggest_classes(values)}"


def _suggest_classes(values: Sequence[int]) -> str:
    pairs = ",".join(f"class{number}:{show_value(value)}" for number, value in enumerate(values))
    return f"'data.mask_classes={{{pairs}}}'"


def suggest_ignored(values: Sequence[int]) -> str:
    shown = [show_value(value) for value in values]
    return shown[0] if len(shown) == 1 and not shown[0].startswith("[") else f"[{','.join(shown)}]"
