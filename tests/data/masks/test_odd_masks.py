"""Masks that are left out, damaged later, or in arrays of floats."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from hydra.core.override_parser.overrides_parser import OverridesParser

from accumtrain.data.config import NpzConfig
from accumtrain.data.masks.values import count_values
from accumtrain.data.open_data import explain_input_error, open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.errors import DataError
from accumtrain.fields import MASKS, NONE
from tests.data.masks.conftest import MASK, encode, in_two_folders


def read_masks(data, split):
    """The masks of a split, int32 [N, H, W], and the weights."""
    elements = list(make_eval_batches(data, batch=1, split=split).as_numpy_iterator())
    return np.concatenate([e["inputs"]["mask"] for e in elements]), np.concatenate([e["weight"] for e in elements])


OTHER = np.zeros([2, 4], np.uint8)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (OTHER, r"02\.png is 4 x 2 pixels, and its image is 3 x 2"),
        (encode(MASK)[:-30], r"02\.png can't be read"),
        (b"", r"02\.png"),
        (encode(MASK, "JPEG"), r"02\.png is a JPEG"),
    ],
)
def test_a_bad_mask_is_named_or_left_out(open_files, bad, message):
    files = in_two_folders(MASK, MASK, bad, MASK, MASK)
    with pytest.raises(DataError, match=message):
        open_files(files)
    data = open_files(files, on_error="skip")
    assert [each["name"].endswith("masks/02.png") for each in data.skipped] == [True]
    weights = np.concatenate([read_masks(data, name)[1] for name in data.splits])
    assert sorted(weights.tolist()) == [0, 1, 1, 1, 1]
    next(iter(make_train_batches(data, batch=2, first=0, seed=0)))
    counts = sum(split.position_counts.sum(0) for split in data.splits.values())
    assert counts.tolist() == [12, 8, 4]
    assert any("0 50.0%, 1 33.3%, 2 16.7%" in note for note in data.notes)


def test_values_of_a_mask_that_is_left_out_are_no_classes(open_files):
    data = open_files(in_two_folders(MASK, MASK, OTHER + 3, MASK), on_error="skip")
    assert data.num_classes == 3


def test_left_out_in_tiles(open_files):
    files = in_two_folders(MASK, OTHER, MASK, MASK)
    data = open_files(files, on_error="skip", crop=2, margin=0, test_fraction=0.5)
    weights = np.concatenate([read_masks(data, name)[1] for name in ("test",)])
    (odd,) = (number for number, file in enumerate(data.test.images.masks) if file.name == "01.png")
    np.testing.assert_array_equal(weights == 0, data.test.tiles[:, 0] == odd)


def test_a_value_without_a_class_names_the_file_and_the_remedy_works(open_files):
    odd = MASK.copy()
    odd[0, 0] = 255
    files, named = in_two_folders(MASK, MASK, odd), {"a": 0, "b": 1, "c": 2}
    with pytest.raises(DataError, match=r"02\.png has the value 255 in 1 pixel, .*data\.ignore=255"):
        open_files(files, mask_classes=named)
    data = open_files(files, mask_classes=named, ignore=255)
    assert data.class_names == ["a", "b", "c"]
    found = np.concatenate([read_masks(data, name)[0] for name in data.splits])
    assert (found == NONE).sum() == 1


GREEN = np.array([[0, 0, 0], [0, 255, 7], [9, 9, 9]], np.uint8)[MASK]


@pytest.mark.parametrize(
    ("masks", "keys"),
    [
        ([MASK * 7, MASK * 7, MASK * 3], {}),
        ([MASK, MASK, np.where(MASK == 1, 255, MASK).astype(np.uint8)], {}),
        ([MASK, MASK, MASK + 9], {"mask_classes": {"a": 0, "b": 1}, "ignore": 2}),
        ([GREEN, GREEN, GREEN], {}),
        ([GREEN, GREEN, GREEN], {"mask_classes": {"a": [0, 0, 0], "b": [0, 255, 7]}}),
        ([GREEN, GREEN, GREEN], {"mask_classes": {"a": [0, 0, 0], "b": [9, 9, 9]}}),
        ([np.arange(0, 60, 10, np.uint8).reshape(2, 3) + n for n in range(3)], {}),
    ],
)
def test_a_remedy_works_when_followed_to_the_letter(open_files, masks, keys):
    files = in_two_folders(*masks)
    with pytest.raises(DataError) as refused:
        open_files(files, **keys)
    given = re.findall(r"data\.(?:mask_classes=\{[^}]*\}|ignore=(?:\[[^ ]*\]|\d+))", str(refused.value))
    assert given
    for text in given:
        override = OverridesParser.create().parse_override(text)
        key, value = override.key_or_group.removeprefix("data."), override.value()
        named = {str(name): number for name, number in value.items()} if isinstance(value, dict) else value
        open_files(files, **{**keys, key: named})


def test_a_file_that_changes_later_is_named(open_files):
    data = open_files(in_two_folders(MASK, MASK, MASK))
    for file in data.train.masks:
        file.write_bytes(b"gone")
    with pytest.raises(tf.errors.OpError) as failure:
        list(make_eval_batches(data, batch=1, split="train"))
    with pytest.raises(DataError, match=r"masks.*can't be read as a picture"):
        raise explain_input_error(failure.value, data)


# ---- arrays


def open_arrays(tmp_path, **given):
    keys = {key: given.pop(key) for key in ("mask_classes", "ignore") if key in given}
    np.savez(tmp_path / "mine.npz", **given)
    config = NpzConfig(path=str(tmp_path / "mine.npz"), val_fraction=0.0, **keys)
    config.check()
    return open_data(config, 0, MASKS)


IMAGES = np.random.default_rng(0).integers(0, 256, [5, 2, 3, 3], np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool, np.float32])
@pytest.mark.parametrize("images", [IMAGES, IMAGES[..., 0]])
def test_arrays(tmp_path, dtype, images):
    masks = np.array([np.roll(MASK, shift) > 0 for shift in range(5)]).astype(dtype)
    data = open_arrays(tmp_path, images=images, masks=masks[..., None])
    assert (data.num_classes, data.train.size, data.test.size) == (2, 4, 1)
    found = np.concatenate([read_masks(data, name)[0] for name in ("test", "train")])
    np.testing.assert_array_equal(found, masks.astype(int))
    counts = sum(split.position_counts.sum(0) for split in data.splits.values())
    assert dict(enumerate(counts.tolist())) == count_values(masks.astype(int))


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (np.full([5, 2, 3], 0.5), "0.5"),
        (np.stack([MASK] * 5).astype(np.int64) + 2**32, "4294967296"),
        (np.where(np.stack([MASK] * 5) == 0, np.nan, 1.0), "nan"),
        (np.stack([MASK] * 5).astype(np.int32) - 1, "-1"),
        (np.zeros([5, 2, 4], np.uint8), r"\[5, 2, 4\]"),
        (np.zeros([5, 2, 3, 4], np.uint8), r"\[5, 2, 3, 4\]"),
    ],
)
def test_arrays_that_are_no_masks(tmp_path, masks, message):
    with pytest.raises(DataError, match=message):
        open_arrays(tmp_path, images=IMAGES, masks=masks)
