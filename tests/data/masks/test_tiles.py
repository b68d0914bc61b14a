"""Tiles cover an image once, so that each pixel is evaluated and answered once."""

from __future__ import annotations

import re

import numpy as np
import pytest

from accumtrain.data.holdout import Subset
from accumtrain.data.images.tiles import TiledSplit, divide_side, join_tiles
from accumtrain.data.open_data import explain_input_error
from accumtrain.data.source import ArraySplit
from accumtrain.errors import DataError
from tests.data.masks.pictures import count_evaluated, count_pixels, evaluate, open_pairs, save_pair, save_pairs


@pytest.mark.parametrize("tile", [8, 9, 13, 16, 32, 64])
def test_tiles_cover_a_side_once_and_keep_the_margin(tile):
    for margin in range((tile + 1) // 2):
        for side in range(1, 201):
            tiles = divide_side(side, tile, margin)
            assert [first for _, first, _ in tiles] == [0, *(end for _, _, end in tiles[:-1])]
            assert tiles[-1][2] == side
            for start, first, end in tiles:
                assert first < end
                assert 0 <= start <= max(side - tile, 0)
                assert start == 0 if first == 0 else first - start >= margin
                assert end <= start + tile if end == side else start + tile - end >= margin


SIZES = np.array([[5, 7], [20, 30], [16, 16], [33, 17], [40, 8]])


def make_tiled(sizes: np.ndarray, tile: tuple[int, int] = (16, 12), margin: int = 3) -> TiledSplit:
    images = ArraySplit(np.zeros([len(sizes), 2, 2, 3], np.uint8), np.arange(len(sizes)))
    return TiledSplit(images, sizes, sizes, tile, margin)


def answer(split: TiledSplit, pictures: list[np.ndarray], indices: list[int]) -> tuple[list[int], np.ndarray]:
    """Return the tiles of pictures as answers, of which the pixels that others decide are wrong."""
    answers = np.full([len(indices), 16, 12, *pictures[0].shape[2:]], -9, pictures[0].dtype)
    for number, index in enumerate(indices):
        image, y, x, top, left, end, right = split.tiles[index]
        answers[number, top - y : end - y, left - x : right - x] = pictures[image][top:end, left:right]
    return indices, answers


@pytest.mark.parametrize("channels", [[], [4]])
@pytest.mark.parametrize("batch", [1, 4, 1000])
def test_tiles_are_joined_to_the_pictures_that_they_are_of(channels, batch):
    split = make_tiled(SIZES)
    pictures = [np.random.default_rng(0).integers(0, 9, [*size, *channels]) for size in SIZES]
    order = list(range(split.size))
    answers = (answer(split, pictures, order[start : start + batch]) for start in range(0, split.size, batch))
    found = list(join_tiles(split, answers))
    assert [number for number, _ in found] == [0, 1, 2, 3, 4]
    for (_, whole), picture in zip(found, pictures, strict=True):
        np.testing.assert_array_equal(whole, picture)


@pytest.mark.parametrize("missing", [0, 1, 4])
@pytest.mark.parametrize("whole", [True, False], ids=["all tiles", "a tile"])
def test_an_image_without_a_tile_is_left_out_alone(missing, whole):
    split = make_tiled(SIZES)
    pictures = [np.random.default_rng(0).integers(0, 9, size) for size in SIZES]
    left_out = np.flatnonzero(split.tiles[:, 0] == missing)[: None if whole else 1]
    order = [index for index in range(split.size) if index not in left_out]
    found = dict(join_tiles(split, [answer(split, pictures, order)]))
    assert list(found) == [number for number in range(5) if number != missing]
    for number, joined in found.items():
        np.testing.assert_array_equal(joined, pictures[number])


def save_sizes(folder) -> list[np.ndarray]:
    return [save_pair(folder, number, height=10 + 7 * number, width=40 - 5 * number) for number in range(6)]


def masks_of(split, masks) -> list[np.ndarray]:
    return [masks[int(file.stem)] for file in split.undivided.files]


@pytest.mark.parametrize(("crop", "margin"), [(8, None), (8, 3), ([16, 12], 0), (64, 3)])
def test_each_labelled_pixel_is_evaluated_once(tmp_path, crop, margin):
    masks = save_sizes(tmp_path)
    data = open_pairs(tmp_path, crop=crop, margin=margin, val_fraction=0.5, test_fraction=0.5)
    assert sum(int(number) for number in re.findall(r"\d+", data.sizes)) == 6
    for split in ("val", "test"):
        found = evaluate(data, split)
        own = masks_of(data.splits[split], masks)
        assert count_evaluated(found) == count_pixels(own)
        known = found["mask"] >= 0
        np.testing.assert_array_equal(np.rint(found["image"] * 255)[known][:, 0], found["mask"][known])
    assert isinstance(data.val.undivided, Subset)


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("damaged", ["image", "truncated image", "mask", "size of mask"])
def test_no_tile_of_an_image_that_is_left_out_is_evaluated(tmp_path, split, damaged):
    masks = save_pairs(tmp_path, height=20, width=30)
    keys = {"crop": 16, "test_fraction": 0.5, "val_fraction": 0.6}
    file = open_pairs(tmp_path, **keys).splits[split].undivided.files[0]
    mask = tmp_path / "masks" / file.name
    if damaged == "image":
        file.write_bytes(b"no picture")
    elif damaged == "truncated image":
        file.write_bytes(file.read_bytes()[:-60])
    elif damaged == "mask":
        mask.write_bytes(b"no picture")
    else:
        save_pair(tmp_path / "other", int(file.stem), height=21, width=30)
        mask.write_bytes((tmp_path / "other" / "masks" / file.name).read_bytes())
    data = open_pairs(tmp_path, **keys, on_error="skip")
    left = [masks[int(each.stem)] for each in data.splits[split].undivided.files if each != file]
    for _ in range(2):  # when it is found, and once it is known
        assert count_evaluated(evaluate(data, split)) == count_pixels(left)
    assert [bad["name"] for bad in data.skipped] == [str(file if "image" in damaged else mask)]
    assert len(data.splits[split].skipped) == 1


def test_a_damaged_image_is_named(tmp_path):
    save_pairs(tmp_path, height=20, width=30)
    file = open_pairs(tmp_path, crop=16).test.undivided.files[0]
    file.write_bytes(file.read_bytes()[:-60])
    data = open_pairs(tmp_path, crop=16)
    with pytest.raises(Exception) as failure:  # noqa: PT011 - of TensorFlow
        evaluate(data)
    found = explain_input_error(failure.value, data)
    assert isinstance(found, DataError)
    assert re.match(f"{re.escape(str(file))} can't be decoded", str(found))
