"""Folders that can be read in two ways."""

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


def test_a_mask_of_the_same_name_comes_first(tmp_path):
    files = ["images/a.png", "images/a_l.png", "masks/a.png", "masks/a_l.png"]
    found, faults = names_of(tmp_path, *files)
    assert (len(found["train"]), faults) == (2, {})


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
