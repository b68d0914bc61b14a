"""Images with masks become splits, whose facts are those of the files and arrays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accumtrain.data.config import NpzConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.source import Dataset
from accumtrain.errors import AccumtrainError, DataError
from accumtrain.fields import MASKS, NONE
from tests.data.masks.pictures import (
    PLAIN,
    count_pixels,
    draw_mask,
    evaluate,
    name_images,
    open_composed,
    open_pairs,
    save,
    save_pair,
    save_pairs,
)

# ---- files


def test_pixels_and_sizes_of_each_image_are_counted(tmp_path):
    masks = [save_pair(tmp_path, number, height=5 + number, width=9) for number in range(6)]
    data = open_pairs(tmp_path, crop=8)
    for split in (data.train, data.test.undivided):
        own = [masks[int(file.stem)] for file in split.files]
        assert split.position_counts.tolist() == [count_pixels([mask]) for mask in own]
        assert split.pixels.tolist() == [list(mask.shape) for mask in own]


def test_shares_of_classes_are_told(tmp_path):
    for number in range(4):
        mask = np.zeros([4, 5], np.uint8)
        mask[0], mask[1, 0] = 3, 9
        mask[1, 1] = 1
        save_pair(tmp_path, number, mask)
    data = open_pairs(tmp_path, mask_classes={"a": 0, "b": 1, "c": 2, "d": 3}, ignore=9)
    assert data.notes == [
        "pixels to train on: a 65.0%, b 5.0%, c 0.0%, d 25.0%, and 5.0% have no class",
        "no pixel to train on is c",
    ]


def test_the_two_values_of_a_mask_are_told(tmp_path):
    for number in range(4):
        save_pair(tmp_path, number, draw_mask(number, classes=2) * np.uint8(255))
    assert "the values 0 and 255 of the masks are two classes, 0 and 1" in open_pairs(tmp_path).notes


def test_images_of_different_sizes_are_refused_and_each_remedy_is_one(tmp_path):
    for number in range(6):
        save_pair(tmp_path, number, height=5 + number, width=9)
    command = ("data=folder", f"data.path={tmp_path}")
    with pytest.raises(DataError, match="images differ in size, from 9 x 5 to 9 x 10 pixels; train on") as refused:
        open_composed(*command)
    advised = re.findall(r"data\.\w+=\d+", str(refused.value))
    assert advised == ["data.crop=256", "data.image_size=256"]
    for override in advised:
        assert open_composed(*command, override).shape == (256, 256, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_that_is_turned_meets_its_mask(tmp_path, orientation):
    mask = draw_mask(0, 16, 24)
    turns = {1: (), 2: "H", 3: "HV", 4: "V", 5: "T", 6: "TV", 7: "THV", 8: "TH"}[orientation]
    stored = mask
    for turn in turns:  # the camera's, undone by the orientation
        stored = {"H": stored[:, ::-1], "V": stored[::-1], "T": stored.T}[turn]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for number in range(2):
        save(tmp_path / "images" / f"{number}.png", np.ascontiguousarray(np.stack([stored] * 3, -1)), exif=exif)
        save(tmp_path / "masks" / f"{number}.png", mask)
    found = evaluate(open_pairs(tmp_path), batch=1)
    np.testing.assert_array_equal(found["mask"][0], mask)
    np.testing.assert_array_equal(np.rint(found["image"][0, ..., 0] * 255), mask)


def test_a_fingerprint_changes_with_the_size_of_a_mask(tmp_path):
    save_pairs(tmp_path)
    before = open_pairs(tmp_path).fingerprint
    assert open_pairs(tmp_path).fingerprint == before
    for file in (tmp_path / "masks").iterdir():
        save(file, np.array(Image.open(file)), compress_level=0)
    after = open_pairs(tmp_path).fingerprint
    assert {key for key in before if before[key] != after[key]} == {"data.train.files", "data.test.files"}


def test_the_same_images_are_held_out_wherever_they_lie(tmp_path):
    for folder in ("a", "b"):
        save_pairs(tmp_path / folder, count=20)
    named = [name_images(open_pairs(tmp_path / folder, val_fraction=0.25)) for folder in ("a", "b")]
    assert named[0] == named[1]
    assert {split: len(names) for split, names in named[0].items()} == {"train": 10, "val": 3, "test": 7}
    assert len({name for names in named[0].values() for name in names}) == 20


def test_a_single_image_is_refused(tmp_path):
    save_pair(tmp_path, 0)
    with pytest.raises(DataError, match="1 image with a mask: it takes two, to train and to test; add some"):
        open_pairs(tmp_path)


def test_images_that_are_left_out_have_no_pixels(tmp_path):
    masks = save_pairs(tmp_path)
    number = int(open_pairs(tmp_path).train.files[0].stem)
    (tmp_path / "images" / f"{number}.png").write_bytes(b"no picture")
    split = open_pairs(tmp_path, on_error="skip").train
    assert split.position_counts[0].tolist() == [0, 0, 0]
    expected = count_pixels([masks[int(file.stem)] for file in split.files[1:]])
    assert split.position_counts.sum(0).tolist() == expected


# ---- arrays

NUMBERS = np.stack([draw_mask(number) for number in range(10)])
PIXELS = np.stack([NUMBERS] * 3, -1)


def open_arrays(folder: Path, arrays: dict[str, np.ndarray], **keys: Any) -> Dataset:
    np.savez(folder / "mine.npz", **arrays)
    config = NpzConfig(**{**PLAIN, "val_fraction": 0.0, "scale": 255, **keys}, path=str(folder / "mine.npz"))
    return open_data(config, 0, MASKS)


def join_split(data: Dataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    (element,) = make_eval_batches(data, batch=data.splits[split].size, split=split).as_numpy_iterator()
    return np.rint(element["inputs"]["image"] * 255), element["inputs"]["mask"]


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        (PIXELS, NUMBERS),
        (NUMBERS, NUMBERS),
        (PIXELS, NUMBERS[..., None]),
        (PIXELS, NUMBERS.astype(np.int64)),
        (PIXELS, NUMBERS.astype(np.uint64)),
        (NUMBERS > 0, NUMBERS > 0),
    ],
    ids=["RGB", "grey", "an axis", "int64", "uint64", "bool"],
)
def test_arrays_become_images_with_masks(tmp_path, images, masks):
    data = open_arrays(tmp_path, {"images": images.astype(np.uint8), "masks": masks})
    assert (data.train.size, data.test.size) == (8, 2)
    for split, numbers in {"train": [1, 2, 3, 4, 6, 7, 8, 9], "test": [0, 5]}.items():
        pixels, found = join_split(data, split)
        np.testing.assert_array_equal(found, masks.reshape(NUMBERS.shape)[numbers])
        np.testing.assert_array_equal(pixels[..., 0], found)
    assert data.train.position_counts.sum(0).tolist() == count_pixels(
        list(join_split(data, "train")[1]), data.num_classes
    )


def test_arrays_of_splits(tmp_path):
    parts = {"train_": slice(0, 5), "val_": slice(5, 7), "test_": slice(7, 10)}
    arrays = {f"{part}{name}": array[some] for part, some in parts.items()
        for name, array in (("images", PIXELS), ("masks", NUMBERS))}  # fmt: skip
    data = open_arrays(tmp_path, arrays)
    for part, some in parts.items():
        np.testing.assert_array_equal(join_split(data, part[:-1])[1], NUMBERS[some])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masks": NUMBERS[:9]}, r"masks is uint8 \[9, 6, 8\], and images is \[10, 6, 8, 3\]: give"),
        ({"masks": NUMBERS[:, :5]}, "give whole numbers"),
        ({"masks": PIXELS}, "give whole numbers"),
        ({"images": PIXELS[..., :2]}, "with 1 or 3 channels"),
        ({"labels": NUMBERS, "masks": None}, "has no array masks: it has images, labels; save it under that name"),
        ({"masks": NUMBERS * np.int64(2**40)}, "have values from 0 to 2199023255552, and these are from 0"),
        ({"images": PIXELS[:1], "masks": NUMBERS[:1]}, "1 image with a mask: it takes two"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_masks_are_refused(tmp_path, changes, message):
    arrays = {"images": PIXELS, "masks": NUMBERS, **changes}
    with pytest.raises(DataError, match=message):
        open_arrays(tmp_path, {name: array for name, array in arrays.items() if array is not None})


def test_the_remedy_for_negative_values_is_one(tmp_path):
    masks = NUMBERS.astype(np.int64) - 1
    with pytest.raises(
        DataError, match=r"from -1 to 1, .*: save pixels without a class as 255, and set data.ignore=255"
    ):
        open_arrays(tmp_path, {"images": PIXELS, "masks": masks})
    data = open_arrays(tmp_path, {"images": PIXELS, "masks": np.where(masks < 0, 255, masks)}, ignore=255)
    assert np.unique(join_split(data, "train")[1]).tolist() == [NONE, 0, 1]


def test_an_unknown_value_of_an_array_is_refused_and_the_remedy_is_one(tmp_path):
    keys = {"mask_classes": {"a": 0, "b": 1}}
    with pytest.raises(DataError, match=r"a mask has the value 2 in \d+ pixels, .* or set data.ignore=2 if"):
        open_arrays(tmp_path, {"images": PIXELS, "masks": NUMBERS}, **keys)
    assert open_arrays(tmp_path, {"images": PIXELS, "masks": NUMBERS}, **keys, ignore=2).num_classes == 2


# ---- keys that masks do not go with


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("data.augment=shift", r"use (data.augment=flip) or dihedral, and data.crop=256 for crops"),
        ("data.augment=crop_flip", r"use data.augment=flip or dihedral, and (data.crop=256) for crops"),
        ("data.augment=inception", r"use (data.augment=flip) or dihedral"),
        ("data.randaugment=2", r"use (data.jitter=0.3)"),
        ("data.erasing=0.3", r"leave it out"),
        ("data.mixup=0.2", r"leave it out"),
        ("data.cutmix=0.2", r"leave it out"),
        ("data.sampling=balanced", r"leave it out"),
    ],
)
def test_changes_of_images_alone_are_refused_and_the_remedy_is_one(tmp_path, override, remedy):
    save_pairs(tmp_path)
    command = ("data=folder", f"data.path={tmp_path}")
    with pytest.raises(AccumtrainError, match=remedy) as refused:
        open_composed(*command, override)
    match = re.search(remedy, str(refused.value))
    assert match
    open_composed(*command, *match.groups())
