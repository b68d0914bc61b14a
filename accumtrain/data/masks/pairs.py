"""Images and the masks beside them, in folders as people have them.

The folder of the masks lies beside that of the images, with train/, val/ and test/ above or below both. Or each mask
lies beside its image. A mask has the stem of its image, or that and a word such as _mask.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accumtrain.data.local_files import check_name, is_image, iterate_visible, list_first, walk_files
from accumtrain.data.sources.folder import SPLIT_NAMES, find_split
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "inputs", "input")
MASK_FOLDERS = (
    *("masks", "mask", "labels", "label", "annotations", "annotation", "gt", "groundtruth"),
    *("segmentationclass", "targets", "target", "segmentations"),
)
_OF_MASK = re.compile(r"[ _.-](mask|masks|label|labels|gt|groundtruth|seg|segmentation|target|annotation|l)$", re.I)
_BETWEEN_WORDS = re.compile(r"[ _-]")  # in the name of a folder
_OF_IMAGE = re.compile(r"[ _.-](image|img|input)$", re.I)


@dataclass(frozen=True)
class MaskedPair:
    """An image with its mask, and its name within the folder."""

    name: str
    image: Path
    mask: Path


@dataclass
class Pairs:
    """The pairs of a split, and what could not be paired, in words."""

    pairs: list[MaskedPair] = field(default_factory=list)
    unpaired: dict[str, str] = field(default_factory=dict)  # the fault by file


def find_pairs(root: Path) -> dict[str, Pairs]:
    """Return the pairs in a folder by split; all as train if it has no folders of splits.

    Raises:
        DataError: there are no images with masks in it.
        OSError: a folder can't be read.
    """
    if found := _find_beside(root):
        images, masks = found
        splits, of_masks = _find_splits(images), _find_splits(masks)
        if splits.keys() != of_masks.keys():
            has, of_these = (list_first(list(each)) or "none" for each in (splits, of_masks))
            raise DataError(
                f"of train, val and test, {images} has {has}, and {masks} has {of_these}: give both the same folders"
            )
        if splits:
            return {split: match_files(_list_images(splits[split]), _list_images(of_masks[split])) for split in splits}
        return {"train": match_files(_list_images(images), _list_images(masks))}
    if splits := _find_splits(root):
        inside = {split: _find_in(folder) for split, folder in splits.items()}
        if inside["train"].pairs:
            return {split: pairs for split, pairs in inside.items() if pairs.pairs or pairs.unpaired}
        raise _find_none(root / splits["train"].name)
    pairs = _find_in(root)
    if not pairs.pairs:
        raise _find_none(root)
    return {"train": pairs}


def _find_none(folder: Path) -> DataError:
    return DataError(
        f"{folder} has no images with masks: give a folder with images/ and masks/, whose files have the same names, "
        "or one with files such as a.png and a_mask.png"
    )


def _find_in(folder: Path) -> Pairs:
    """Return the pairs in a folder of images/ and masks/, or of images with masks beside them."""
    if found := _find_beside(folder):
        return match_files(*map(_list_images, found))
    files = _list_images(folder)
    masks = {name: file for name, file in files.items() if _OF_MASK.search(_stem(name))}
    return match_files({name: file for name, file in files.items() if name not in masks}, masks)


def _find_beside(folder: Path) -> tuple[Path, Path] | None:
    """Return the folder of the images and that of the masks, if a folder has one of each."""
    inside = sorted(entry for entry in iterate_visible(folder) if entry.is_dir())
    named = [[each for each in inside if _fold_name(each) in names] for names in (IMAGE_FOLDERS, MASK_FOLDERS)]
    found = [[each for each in folders if any(map(is_image, walk_files(each)))] for folders in named]
    for folders, what in zip(found, ("images", "masks"), strict=True):
        if len(folders) > 1 and all(found):
            names = list_first(sorted(each.name for each in folders))
            raise DataError(f"{folder} has {names}, all for {what}: leave one of them")
    return (found[0][0], found[1][0]) if all(found) else None


def _fold_name(folder: Path) -> str:
    """Return the name of a folder in lower case, without what stands between its words."""
    return _BETWEEN_WORDS.sub("", folder.name.lower())


def _find_splits(folder: Path) -> dict[str, Path]:
    """Return the folders of splits in a folder, if train is among them. Raise DataError for two of a split."""
    found: dict[str, list[Path]] = {}
    for entry in sorted(entry for entry in iterate_visible(folder) if entry.is_dir()):
        if split := find_split(entry.name):
            found.setdefault(split, []).append(entry)
    if "train" not in found:
        return {}
    for folders in found.values():
        if len(folders) > 1:
            raise DataError(f"{folder} has {' and '.join(f'{each.name}/' for each in folders)}: keep one of them")
    return {split: found[split][0] for split in SPLIT_NAMES if split in found}


def _list_images(folder: Path) -> dict[str, Path]:
    """Return the image files in a folder by their names within it."""
    files = [file for file in walk_files(folder) if is_image(file)]
    for file in files:
        check_name(file)
    return {normal_form(file.relative_to(folder).as_posix()): file for file in files}


def _stem(name: str) -> str:
    """Return a name without the last suffix."""
    return name.rpartition(".")[0]


def match_files(images: Mapping[str, Path], masks: Mapping[str, Path]) -> Pairs:
    """Return the pairs of images and masks by their names."""
    of_images = {stem for name in images for stem in (_stem(name), _OF_IMAGE.sub("", _stem(name)))}
    by_stem: dict[str, list[Path]] = {}
    for name, file in masks.items():
        own = _stem(name)
        by_stem.setdefault(own if own in of_images else _OF_MASK.sub("", own), []).append(file)
    found, used = Pairs(), set[Path]()
    for name, file in images.items():
        stems = (_stem(name), _OF_IMAGE.sub("", _stem(name)))
        chosen: Sequence[Path] = next((by_stem[stem] for stem in stems if stem in by_stem), ())
        used.update(chosen)
        if len(chosen) == 1:
            found.pairs.append(MaskedPair(name, file, chosen[0]))
        else:
            fault = f"has {len(chosen)} masks, {list_first(chosen)}" if chosen else "has no mask"
            found.unpaired[str(file)] = fault
    found.unpaired |= {str(file): "is a mask without an image" for file in masks.values() if file not in used}
    counts = Counter(pair.mask for pair in found.pairs)
    found.unpaired |= {str(file): "is the mask of several images" for file, count in counts.items() if count > 1}
    found.pairs = [pair for pair in found.pairs if counts[pair.mask] == 1]
    return found
