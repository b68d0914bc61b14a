from __future__ import annotations

import pytest

from accumtrain.data.masks.pairs import find_pairs
from accumtrain.errors import DataError
from tests.data.masks.conftest import MASK, photo, write


def names_of(root, *files):
    """The image and mask of each pair by split, as the names of the files."""
    write(root, {file: photo() for file in files})
    found = find_pairs(root)
    return {
        split: [(str(pair.image.relative_to(root)), str(pair.mask.relative_to(root))) for pair in each.pairs]
        for split, each in found.items()
    }, {file.rpartition("/")[2]: fault for each in found.values() for file, fault in each.unpaired.items()}


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("images/a.jpg", "masks/a.png"),
        ("Images/a.JPG", "Masks/a.PNG"),
        ("JPEGImages/a.jpg", "SegmentationClass/a.png"),
        ("imgs/a.png", "labels/a.png"),
        ("img/a.png", "gt/a_gt.png"),
        ("inputs/a.png", "targets/a-mask.png"),
        ("image/a_image.png", "annotations/a_label.png"),
        ("image/a b é.png", "Ground Truth/a b é.mask.png"),
        ("images/sub/a.png", "masks/sub/a_seg.png"),
        ("a.png", "a_mask.png"),
        ("a_img.png", "a_mask.png"),
    ],
)
def test_names_of_pairs(tmp_path, image, mask):
    assert names_of(tmp_path, image, mask) == ({"train": [(image, mask)]}, {})


@pytest.mark.parametrize("form", ["{}/images", "images/{}"])
def test_splits_above_or_below(tmp_path, form):
    folders = {"train": "train", "valid": "val", "Testing": "test"}
    files = [f"{form.format(top).replace('images', kind)}/{top}.png" for top in folders for kind in ("images", "masks")]
    found, faults = names_of(tmp_path, *files)
    assert faults == {}
    assert {split: len(pairs) for split, pairs in found.items()} == {"train": 1, "val": 1, "test": 1}
    assert found["val"][0][0].endswith("valid.png")


def test_a_mask_of_the_same_name_comes_first(tmp_path):
    files = ["images/a.png", "images/a_l.png", "masks/a.png", "masks/a_l.png"]
    found, faults = names_of(tmp_path, *files)
    assert (len(found["train"]), faults) == (2, {})


def test_what_has_no_partner(tmp_path):
    files = ["images/a.png", "images/b.png", "images/c.png", "masks/b.png", "masks/d.png", "masks/c.png"]
    found, faults = names_of(tmp_path, *files, "masks/c_mask.png", "images/b.jpg")
    assert found == {"train": []}
    assert faults["a.png"] == "has no mask"
    assert faults["d.png"] == "is a mask without an image"
    assert faults["c.png"].startswith("has 2 masks")
    assert "several images" in faults["b.png"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["images/a.png", "masks/a.png", "labels/a.png"], "labels, masks"),
        (["train/images/a.png", "train/masks/a.png", "training/images/b.png", "training/masks/b.png"], "training"),
        (["a.png"], "no images with masks"),
        (["images/train/a.png", "images/test/b.png", "masks/train/a.png"], "test"),
    ],
)
def test_folders_that_can_be_read_in_two_ways(tmp_path, files, message):
    write(tmp_path, dict.fromkeys(files, MASK))
    with pytest.raises(DataError, match=message):
        find_pairs(tmp_path)
