"""Each image finds its mask, however the files lie, and what has no partner is refused by name or left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from accumtrain.data.masks.pairs import find_pairs
from accumtrain.errors import DataError
from tests.data.masks.pictures import draw_mask, open_composed, open_pairs, save, save_pairs


def touch(folder: Path, *names: str) -> None:
    """Save pictures of these names."""
    for name in names:
        save(folder / name, draw_mask(len(name)))


def list_pairs(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the names of images and masks by split."""
    found = find_pairs(folder)
    assert not any(pairs.unpaired for pairs in found.values())

    def name(file: Path) -> str:
        return file.relative_to(folder).as_posix()

    return {split: sorted((name(pair.image), name(pair.mask)) for pair in each.pairs) for split, each in found.items()}


LAYOUTS = {
    "same stems": [("images/a.jpg", "masks/a.png"), ("images/b.png", "masks/b.png")],
    "suffixes": [("images/a.png", "masks/a_mask.png"), ("images/b.png", "masks/b_label.png"),
        ("images/c.png", "masks/c_gt.png")],
    "words of both": [("images/a_image.png", "masks/a_mask.png"), ("images/b-img.png", "masks/b.png")],
    "VOC": [("JPEGImages/2007_1.jpg", "SegmentationClass/2007_1.png")],
    "beside": [("a.png", "a_mask.png"), ("b.png", "b.mask.png"), ("c_image.png", "c_label.png")],
    "odd names": [("images/ä ö.PNG", "masks/ä ö.png"), ("images/a b_c.d.png", "masks/a b_c.d.tif")],
    "nested": [("images/x/1.png", "masks/x/1.png"), ("images/y/1.png", "masks/y/1_mask.png")],
    "beginnings": [("images/img_1.png", "masks/img_1.png"), ("images/img_10.png", "masks/img_10.png"),
        ("images/img_100.png", "masks/img_100_mask.png")],
    "a beside a_mask": [("images/a.png", "masks/a.png"), ("images/a_mask.png", "masks/a_mask.png")],
    "a beside a_image": [("images/a.png", "masks/a.png"), ("images/a_image.png", "masks/a_image_mask.png")],
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_images_find_their_masks(tmp_path, name):
    touch(tmp_path, *(file for pair in LAYOUTS[name] for file in pair))
    assert list_pairs(tmp_path) == {"train": sorted(LAYOUTS[name])}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("split", ["val", "test"])
def test_folders_of_splits_lie_above(tmp_path, name, split):
    touch(tmp_path, *(f"{part}/{file}" for part in ("train", split) for pair in LAYOUTS[name] for file in pair))
    assert list_pairs(tmp_path) == {
        part: sorted((f"{part}/{image}", f"{part}/{mask}") for image, mask in LAYOUTS[name])
        for part in ("train", split)
    }


def test_folders_of_splits_lie_below(tmp_path):
    parts = ("train", "val", "test")
    touch(tmp_path, *(f"{kind}/{part}/a.png" for kind in ("images", "masks") for part in parts))
    assert list_pairs(tmp_path) == {part: [(f"images/{part}/a.png", f"masks/{part}/a.png")] for part in parts}


def test_folders_without_pictures_are_not_of_masks(tmp_path):
    touch(tmp_path, "JPEGImages/a.jpg", "SegmentationClass/a.png")
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text("<a/>")
    assert list_pairs(tmp_path) == {"train": [("JPEGImages/a.jpg", "SegmentationClass/a.png")]}


def test_two_folders_of_masks_are_refused(tmp_path):
    touch(tmp_path, "images/a.png", "masks/a.png", "labels/a.png")
    with pytest.raises(DataError, match="has labels, masks, all for masks: leave one of them"):
        find_pairs(tmp_path)


@pytest.mark.parametrize("names", [["a.png", "b.png"], ["train/x/a.png", "test/x/a.png"], ["images/a.png"], []])
def test_a_folder_without_masks_is_refused_and_the_remedy_is_one(tmp_path, names):
    touch(tmp_path, *names)
    with pytest.raises(DataError, match=r"has no images with masks: give a folder with (\w+)/ and (\w+)/") as refused:
        open_pairs(tmp_path)
    images, masks = re.findall(r"(\w+)/", str(refused.value).partition("give")[2])
    touch(tmp_path / "given", *(f"{folder}/{number}.png" for folder in (images, masks) for number in range(3)))
    assert open_pairs(tmp_path / "given").train.size == 2


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="is not a directory: give the folder of the images and masks"):
        open_pairs(tmp_path / "none")


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["images/x.png"], r"images/x.png has no mask"),
        (["masks/x.png"], r"masks/x.png is a mask without an image"),
        (["images/x.png", "masks/x.png", "masks/x.tif"], r"images/x.png has 2 masks, \S*x.png, \S*x.tif"),
        (["images/x.png", "masks/x_mask.png", "masks/x_gt.png"], r"images/x.png has 2 masks"),
        (["images/x.png", "images/x.jpg", "masks/x.png"], r"masks/x.png is the mask of several images"),
    ],
    ids=["image", "mask", "two masks", "two words", "two images"],
)  # fmt: skip
def test_files_without_a_partner_are_refused_or_left_out(tmp_path, names: Sequence[str], fault: str):
    save_pairs(tmp_path)
    touch(tmp_path, *names)
    refused = rf"{fault}.*: give each image a single mask of its name, or move the file away, or set data.on_error=skip"
    with pytest.raises(DataError, match=refused):
        open_pairs(tmp_path)
    data = open_composed("data=folder", f"data.path={tmp_path}", "data.on_error=skip")
    assert re.search(fault, " ".join(data.skipped[0].values()))
    assert re.search(f"left out: .*{fault}", " ".join(data.notes))
    assert sum(split.undivided.size for split in data.splits.values()) == 6 + ("without an" in fault and len(names) > 1)
    for name in names:
        (tmp_path / name).rename(tmp_path.with_name(f"{tmp_path.name}-{Path(name).name}"))
    assert open_pairs(tmp_path).train.size == 4


def test_more_faults_are_counted(tmp_path):
    save_pairs(tmp_path)
    touch(tmp_path, *(f"images/x{number}.png" for number in range(8)))
    with pytest.raises(DataError, match=r"x4.png has no mask; 3 more: give"):
        open_pairs(tmp_path)


def test_pixels_of_a_mask_are_those_of_its_image(tmp_path):
    masks = {name: draw_mask(number) for number, name in enumerate(["a", "a_mask", "b"])}
    for name, mask in masks.items():
        save(tmp_path / "images" / f"{name}.png", np.stack([mask] * 3, -1))
        save(tmp_path / "masks" / f"{name}.png", mask)
    split = open_pairs(tmp_path).train
    for index, file in enumerate(split.files):
        counts = np.bincount(masks[file.stem].ravel(), minlength=3)
        np.testing.assert_array_equal(split.position_counts[index], counts)
