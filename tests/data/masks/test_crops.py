"""Image and mask are cropped, mirrored and turned alike, and so are plain images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import NpzConfig
from accumtrain.data.images.crops import DIHEDRAL, FLIP, cut, draw_balanced_window, draw_symmetry, draw_window
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.errors import ConfigError
from accumtrain.fields import NONE
from tests.data.masks.pictures import PLAIN, draw_mask, open_composed, open_pairs, save_pair, save_pairs

DRAWS = 400
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 7: 24.32}  # by degrees of freedom, of which 1 in 1000 is above


def chi_square(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


def read_stream(data: Any, batch: int = 8, count: int = 3) -> tuple[np.ndarray, np.ndarray]:
    elements = list(make_train_batches(data, batch=batch, first=0, seed=1).take(count).as_numpy_iterator())
    return tuple(np.concatenate([each["inputs"][part] for each in elements]) for part in ("image", "mask"))  # type: ignore[return-value]


def draw(one: Callable[[tf.Tensor], tf.Tensor]) -> np.ndarray:
    """Return what is drawn from each of many keys."""
    keys = tf.data.Dataset.range(DRAWS).map(lambda number: one(tf.cast(number * 7919, tf.uint64)))
    return np.array(list(keys.as_numpy_iterator()))


def key_of(number: int) -> tf.Tensor:
    return tf.constant(number * 7919, tf.uint64)


@pytest.mark.parametrize(
    "keys",
    [
        {"crop": [8, 12]},
        {"crop": 8, "balanced_crops": True},
        {"crop": 8, "augment": "flip"},
        {"crop": 8, "augment": "dihedral"},
        {"crop": 24, "augment": "dihedral"},
        {"augment": "flip"},
    ],
    ids=str,
)
def test_an_image_and_its_mask_are_changed_alike(tmp_path, keys):
    if "image_size" in keys:  # areas that survive a resize
        for number in range(6):
            save_pair(tmp_path, number, draw_mask(number, 4, 4).repeat(8, 0).repeat(8, 1))
    else:
        save_pairs(tmp_path, height=20, width=30)
    data = open_pairs(tmp_path, **keys, mean=[9.0], ignore=9)
    image, mask = read_stream(data)
    again = read_stream(data)
    np.testing.assert_array_equal(image, again[0])
    np.testing.assert_array_equal(mask, again[1])
    assert len(np.unique(image.reshape(len(image), -1), axis=0)) >= 8
    known = mask != NONE
    pixels = (image[..., 0] + 9) * 255
    if "image_size" in keys:
        assert np.mean(np.abs(pixels - mask) < 0.6) > 0.6
    else:
        np.testing.assert_allclose(pixels[known], mask[known], atol=1e-3)
    assert known.all() == (keys.get("crop") != 24)


def test_a_crop_beyond_the_image_is_filled_with_the_mean_and_no_class(tmp_path):
    masks = save_pairs(tmp_path, height=6, width=8)
    image, mask = read_stream(open_pairs(tmp_path, crop=[8, 16], mean=[0.2]))
    assert mask.shape[1:] == (8, 16)
    assert (mask[:, 6:] == NONE).all()
    assert (mask[:, :, 8:] == NONE).all()
    np.testing.assert_allclose(image[:, 6:], 0, atol=1e-6)
    np.testing.assert_allclose(image[:, :, 8:], 0, atol=1e-6)
    known = {each.tobytes() for each in masks}
    assert {each[:6, :8].astype(np.uint8).tobytes() for each in mask} <= known


@pytest.mark.parametrize("crop", [(3, 5), (20, 4), (10, 12)])
def test_windows_lie_in_the_image_and_all_are_drawn(crop):
    windows = draw(lambda key: draw_window(tf.constant([10, 12]), crop, key))
    for axis, (side, length) in enumerate(zip((10, 12), crop, strict=True)):
        assert set(windows[:, axis].tolist()) == set(range(max(side - length, 0) + 1))


def test_balanced_crops_hold_each_class_equally_often():
    mask = np.full([30, 40], NONE, np.int32)
    mask[:20, :20], mask[29, 39], mask[0, 39], mask[15:17, 30] = 0, 1, 4, 7
    windows = draw(lambda key: draw_balanced_window(tf.constant(mask), (1, 1), key))
    counts = Counter(mask[tuple(window)] for window in windows)  # a crop of one pixel is the drawn one
    assert counts.keys() == {0, 1, 4, 7}
    assert chi_square(list(counts.values())) < CHI_SQUARE[3]
    for crop in ((7, 9), (40, 3), (30, 40), (64, 64)):
        windows = draw(lambda key, crop=crop: draw_balanced_window(tf.constant(mask), crop, key))
        for top, left in windows:
            assert 0 <= top <= max(30 - crop[0], 0)
            assert 0 <= left <= max(40 - crop[1], 0)
            assert (mask[top : top + crop[0], left : left + crop[1]] != NONE).any()


def test_a_mask_without_a_class_is_cropped_at_random():
    mask = tf.fill([10, 12], NONE)
    for number in range(20):
        window = draw_balanced_window(mask, (3, 5), key_of(number))
        np.testing.assert_array_equal(window, draw_window(tf.constant([10, 12]), (3, 5), key_of(number)))


def test_a_crop_has_the_pixels_of_its_place():
    image = np.arange(10 * 12 * 3).reshape(10, 12, 3).astype(np.float32)
    found = cut(tf.constant(image), tf.constant([7, 2]), (5, 4), tf.constant([-1.0, -2.0, -3.0])).numpy()
    np.testing.assert_array_equal(found[:3], image[7:, 2:6])
    assert (found[3:] == [-1, -2, -3]).all()


@pytest.mark.parametrize(("augment", "number"), [(FLIP, 2), (DIHEDRAL, 8)])
def test_symmetries_are_equally_often(augment, number):
    image = np.arange(9, dtype=np.int32).reshape(3, 3, 1)
    turned = draw(lambda key: draw_symmetry([tf.constant(image)], key, augment)[0])
    counts = Counter(each.tobytes() for each in turned)
    every = {np.rot90(each, turn).tobytes() for each in (image, image[:, ::-1]) for turn in range(4)}
    assert len(counts) == number
    assert counts.keys() <= every
    assert chi_square(list(counts.values())) < CHI_SQUARE[number - 1]


# ---- plain images


def open_plain(folder: Any, height: int, **keys: Any) -> Any:
    images = np.random.default_rng(0).integers(0, 256, [12, height, 6, 3], np.uint8)
    np.savez(folder / "plain.npz", images=images, labels=np.arange(12) % 2)
    config = NpzConfig(**{**PLAIN, "val_fraction": 0.0, **keys}, path=str(folder / "plain.npz"))
    return open_data(config, 0)


@pytest.mark.parametrize(("augment", "number"), [("flip", 2), ("dihedral", 8)])
def test_plain_images_are_seen_in_all_symmetries(tmp_path, augment, number):
    data = open_plain(tmp_path, 6, augment=augment)
    stored = next(iter(make_eval_batches(data, batch=data.train.size, split="train")))["inputs"].numpy()
    plain = replace(data, inputs=replace(data.inputs, augment="none"))
    np.testing.assert_array_equal(
        stored, next(iter(make_eval_batches(plain, batch=data.train.size, split="train")))["inputs"])  # fmt: skip
    seen = [batch["inputs"].numpy() for batch in make_train_batches(data, batch=10, first=0, seed=0).take(20)]
    symmetries = set()
    for image in np.concatenate(seen):
        found = [
            (mirrored, turn)
            for each in stored
            for mirrored in (False, True)
            for turn in range(4)
            if np.array_equal(image, np.rot90(each[:, ::-1] if mirrored else each, turn))
        ]
        assert len(found) == 1
        symmetries.update(found)
    assert len(symmetries) == number
    assert augment == "dihedral" or symmetries == {(False, 0), (True, 0)}


def test_images_that_are_not_square_are_mirrored_but_not_turned(tmp_path):
    open_plain(tmp_path, 4, augment="flip")
    with pytest.raises(
        ConfigError, match=r"these are 4 x 6; use data.augment=flip, or make them square by data.image_"
    ):
        open_plain(tmp_path, 4, augment="dihedral")
    assert open_plain(tmp_path, 4, augment="dihedral", image_size=6).shape == (6, 6, 3)


@pytest.mark.parametrize("override", ["data.image_size=16", "data.crop=16", "data.augment=flip"])
def test_images_with_masks_that_are_not_square_are_turned_once_they_are(tmp_path, override):
    save_pairs(tmp_path, height=20, width=30)
    command = ("data=folder", f"data.path={tmp_path}")
    with pytest.raises(
        ConfigError, match=r"these are 20 x 30; use data.augment=flip, or make them square by data.image_"
    ):
        open_composed(*command, "data.augment=dihedral")
    open_composed(*command, *(["data.augment=dihedral"] if "augment" not in override else []), override)


def test_crops_that_are_not_square_are_not_turned(tmp_path):
    save_pairs(tmp_path, height=20, width=20)
    with pytest.raises(ConfigError, match="these are 8 x 16"):
        open_pairs(tmp_path, crop=[8, 16], augment="dihedral")
