"""Arrays of a file arrive in batches as they are meant, and a file that is not as described is refused by name."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.read import expand_homes
from accumtrain.data.config import NpzConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.source import Dataset
from accumtrain.data.stream import example_at
from accumtrain.errors import DataError
from tests.data.conftest import assert_refused, flip_bit, read_pictures

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, [20, 6, 8, 3], np.uint8)
IMAGES[:, 0, 0, 0] = np.arange(20)  # the number of the image
IMAGES[:, 0, 0, 1] = 255
LABELS = np.arange(20) % 3
MINE = {"images": IMAGES, "labels": LABELS}
TEST = {"test_images": IMAGES[:4], "test_labels": LABELS[:4]}
VAL = {"val_images": IMAGES[4:7], "val_labels": LABELS[4:7]}
NUMBERS = {"train": list(range(20)), "val": [4, 5, 6], "test": [0, 1, 2, 3]}


@pytest.fixture
def write(tmp_path):
    """Write mine.npz. Return a configuration that reads it and leaves pixels in 0..1."""

    def save(arrays, **keys):
        np.savez(tmp_path / "mine.npz", **arrays)
        return NpzConfig(path=str(tmp_path / "mine.npz"), **{"mean": [0.0], "std": [1.0], "val_fraction": 0.0, **keys})

    return save


def whole(data: Dataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    (element,) = make_eval_batches(data, batch=getattr(data, split).size, split=split)
    return element["inputs"].numpy(), element["targets"].numpy()


def numbers(data: Dataset, split: str) -> list[int]:
    """Return the number of each image, after a look at its label."""
    found = read_pictures(data, split)
    assert list(found.values()) == LABELS[list(found)].tolist()
    return list(found)


# ---- from the file to a batch ----


def test_positions_of_the_stream_give_the_images_of_the_file(write):
    data = open_data(write({**MINE, **TEST}), seed=0)
    assert (data.shape, data.num_classes, data.notes) == ((6, 8, 3), 3, [])
    batch = next(iter(make_train_batches(data, batch=8, first=16, seed=5)))
    _, index = example_at(tf.range(16, 24, dtype=tf.int64), 20, 5)  # across the end of an epoch
    np.testing.assert_array_equal(batch["inputs"], IMAGES[index] / np.float32(255))
    np.testing.assert_array_equal(batch["targets"], LABELS[index])


def test_grey_images_need_no_axis_of_channels(write):
    data = open_data(write({**MINE, **TEST, "images": IMAGES[..., 0], "test_images": IMAGES[:4, ..., 0]}), seed=0)
    assert data.shape == (6, 8, 1)
    np.testing.assert_array_equal(whole(data, "train")[0], IMAGES[..., :1] / np.float32(255))


@pytest.mark.parametrize("arrays", [TEST, VAL, {**VAL, **TEST}], ids=["test", "val", "val and test"])
def test_arrays_of_other_splits(write, arrays):
    data = open_data(write({**MINE, **arrays}), seed=0)
    assert {"train"} | {name.partition("_")[0] for name in arrays} == data.splits.keys()
    assert {split: numbers(data, split) for split in data.splits} == {name: NUMBERS[name] for name in data.splits}


@pytest.mark.parametrize(
    ("fraction", "held_out"),
    [
        (0.01, [0, 1, 2]),  # at least one of each class
        (0.25, [0, 1, 2, 9, 10, 11]),  # evenly spaced
        (0.99, list(range(17))),  # one of each class is left to train on
    ],
)
def test_the_same_share_of_each_class_is_held_out_for_every_seed(write, fraction, held_out):
    for seed in (0, 7):
        data = open_data(write(MINE, test_fraction=fraction), seed)
        assert numbers(data, "test") == held_out
        assert sorted(held_out + numbers(data, "train")) == list(range(20))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64", ">i4"])
def test_labels_may_be_of_any_integer_type(write, dtype):
    data = open_data(write({**MINE, "labels": LABELS.astype(dtype)}), seed=0)
    assert sorted(numbers(data, "train") + numbers(data, "test")) == list(range(20))


@pytest.mark.parametrize(
    "labels",
    [LABELS[:, None], LABELS.astype(np.float32), LABELS == 1, np.eye(3)[LABELS], np.eye(3, dtype=bool)[LABELS]],
    ids=["[N, 1]", "floats", "booleans", "one-hot", "one-hot booleans"],
)
def test_labels_as_people_store_them(write, labels):
    data = open_data(write({**MINE, **TEST, "labels": labels, "test_labels": labels[:4]}), seed=0)
    expected = LABELS == 1 if labels.dtype == bool and labels.ndim == 1 else LABELS
    np.testing.assert_array_equal(whole(data, "train")[1], expected)
    np.testing.assert_array_equal(whole(data, "test")[1], expected[:4])


NAMES = np.array(["tea", "caf\u00e9", "10"])  # classes have the order of texts: 10, café, tea
DECOMPOSED = np.array(["tea", "cafe\u0301", "10"])


@pytest.mark.parametrize(
    "labels",
    [NAMES[LABELS], NAMES[LABELS][:, None], np.char.encode(NAMES, "utf-8")[LABELS], DECOMPOSED[LABELS]],
    ids=["texts", "[N, 1]", "bytes", "decomposed"],
)  # fmt: skip
def test_texts_are_the_names_of_classes(write, labels):
    data = open_data(write({**MINE, **TEST, "labels": labels, "test_labels": NAMES[LABELS[:4]]}), seed=0)
    assert (data.num_classes, data.class_names) == (3, ["10", "caf\u00e9", "tea"])
    np.testing.assert_array_equal(whole(data, "train")[1], 2 - LABELS)
    np.testing.assert_array_equal(whole(data, "test")[1], 2 - LABELS[:4])
    assert data.fingerprint["data.classes"] == data.class_names


def test_the_names_of_medmnist(write):
    arrays = {**VAL, **TEST, "train_images": IMAGES, "train_labels": LABELS}
    arrays = {name: array[:, None] if name.endswith("labels") else array for name, array in arrays.items()}
    data = open_data(write(arrays), seed=0)
    assert {split: numbers(data, split) for split in data.splits} == NUMBERS


def test_the_home_folder_is_found(write, tmp_path, monkeypatch):
    write(MINE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_data(expand_homes(NpzConfig(path="~/mine.npz")), seed=0).num_classes == 3


# ---- types of pixels ----


def first_batches(data: Dataset) -> list[np.ndarray]:
    """The images of the first batch of each split."""
    return [next(iter(make_train_batches(data, batch=8, first=0, seed=0)))["inputs"].numpy(), whole(data, "test")[0]]


@pytest.mark.parametrize(
    ("images", "notes"),
    [
        (IMAGES.astype(np.int64), []),
        (IMAGES.astype(np.float16), ["images is float16 with a maximum of 255.0: taken as 0..255"]),
        (IMAGES.astype(">f4"), ["images is >f4 with a maximum of 255.0: taken as 0..255"]),
        (IMAGES / np.float32(255), ["images is float32 with a maximum of 1.0: taken as 0..1"]),
        (IMAGES / 255.0, ["images is float64 with a maximum of 1.0: taken as 0..1"]),
    ],
    ids=["int64", "float16 0..255", "float32 0..255", "float32 0..1", "float64 0..1"],
)
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="as it is"),
        pytest.param({"image_size": 5}, id="resized", marks=pytest.mark.slow),
        pytest.param({"image_size": 5, "augment": "inception"}, id="inception"),
    ],
)
def test_all_types_give_the_batch_of_uint8(write, images, notes, keys):
    expected, data = (open_data(write({**MINE, "images": pixels}, **keys), seed=0) for pixels in (IMAGES, images))
    assert data.notes == notes
    for one, other in zip(first_batches(expected), first_batches(data), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 if keys else 0)


def test_floats_arrive_to_the_bit(write):
    images = RANDOM.random([20, 6, 8, 1], np.float32)
    data = open_data(write({"images": images, "labels": LABELS, "test_images": images, "test_labels": LABELS}), seed=0)
    np.testing.assert_array_equal(whole(data, "test")[0], images)


UNIT = IMAGES / np.float32(255)


def beyond(images: np.ndarray, value: float) -> np.ndarray:
    """The images, one pixel of which has another value."""
    images = images.copy()
    images[1, 2, 3, 0] = value
    return images


@pytest.mark.parametrize("split", ["", "val_", "test_"])
@pytest.mark.parametrize("value", [np.nextafter(np.float32(1), np.float32(2)), 1.02, -0.07])
def test_a_resize_may_overshoot_in_any_split(write, split, value):
    """All splits have one scale, and what is beyond it is cut off, so it is the batch of the images without it."""
    arrays = {**MINE, **VAL, **TEST, "images": UNIT, "val_images": UNIT[4:7], "test_images": UNIT[:4]}
    images = beyond(arrays[f"{split}images"], value)
    data = open_data(write({**arrays, f"{split}images": images}), seed=0)
    assert [note for note in data.notes if note.endswith("taken as 0..1, values beyond that are cut off")] == [
        f"{split}images is float32 with a maximum of {images.max()}: taken as 0..1, values beyond that are cut off"
    ]
    expected = {"train": UNIT, "val": UNIT[4:7], "test": UNIT[:4]}
    expected[{"": "train", "val_": "val", "test_": "test"}[split]] = np.clip(images, 0, 1)
    for name, pixels in expected.items():
        np.testing.assert_array_equal(whole(data, name)[0], pixels)


DARK = {"test_images": (IMAGES[:4] // 255).astype(np.float32)}  # 0 and 1, beside images of 0..255


@pytest.mark.parametrize(
    ("arrays", "told", "remedies"),
    [
        ({**TEST, **DARK}, "images has pixels of 0 to 255, test_images has pixels of 0.0 to 1.0, which", {255: 1}),
        ({"images": IMAGES // 255}, "images has pixels of 0 to 1, which does not tell", {1: 1, 255: 1 / 255}),
        ({"images": IMAGES / 15.9375}, "images has pixels of 0.0 to 16.0, which does not tell", {255: 16 / 255}),
        ({"images": beyond(UNIT * 255, 262)}, "images has pixels of 0.0 to 262.0, which", {255: 1}),
        ({**TEST, "images": UNIT, "test_images": UNIT[:4] * 7}, "test_images has pixels of 0.0 to 7.0", {255: 7 / 255}),
    ],
    ids=["two scales", "0 and 1", "0..16", "beyond 255", "beyond 1"],
)  # fmt: skip
def test_what_does_not_tell_its_scale_is_refused_with_the_keys_that_do(write, arrays, told, remedies):
    with pytest.raises(DataError) as refused:
        open_data(write({**MINE, **arrays}), seed=0)
    assert told in str(refused.value)
    advised = {int(scale) for scale in re.findall(r"set data.scale=(\d+)", str(refused.value))}
    assert advised == remedies.keys()
    for scale in (1, 255):
        config = write({**MINE, **arrays}, scale=scale)
        if scale not in advised:
            assert_refused(config, f"white is taken as {scale}: ")
            continue
        found = np.concatenate([whole(open_data(config, seed=0), split)[0] for split in ("train", "test")])
        assert found.max() == pytest.approx(remedies[scale])


@pytest.mark.parametrize("images", [UNIT, IMAGES // 255], ids=["floats", "integers"])
def test_a_given_scale_decides(write, images):
    for scale in (1, 255):
        data = open_data(write({**MINE, "images": images}, scale=scale, test_fraction=0.01), seed=0)
        np.testing.assert_array_equal(whole(data, "train")[0], images[3:] / np.float32(scale))


def test_images_of_two_sizes_are_resized(write):
    data = open_data(write({**MINE, **TEST, "test_images": IMAGES[:4, :5]}, image_size=7), seed=0)
    assert whole(data, "test")[0].shape == (4, 7, 7, 3)
    assert whole(data, "train")[0].shape == (20, 7, 7, 3)


# ---- what is refused ----


def with_pixel(value: float) -> dict[str, np.ndarray]:
    return {"images": beyond(IMAGES.astype(np.float32), value)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": None, "x": IMAGES}, r"has no array images: it has labels, x; save it under that name"),
        ({"test_images": IMAGES}, r"has no array test_labels: it has images, labels, test_images"),
        ({"val_labels": LABELS}, r"has no array val_images: it has"),
        ({"images": np.array([IMAGES[0], "x"], object)}, r"images is of type object: pixels must be integers or"),
        ({"train_images": IMAGES}, r"has images and train_images: save those to train on under one of these names"),
        ({"images": IMAGES > 9}, r"images is of type bool: pixels must be integers or floats"),
        ({"images": IMAGES[0, 0]}, r"images has the shape \[8, 3\]: give \[N, height, width\] or"),
        ({"images": IMAGES[..., :2]}, r"images has the shape \[20, 6, 8, 2\]: .* with 1 or 3 channels"),
        ({"images": np.moveaxis(IMAGES, 3, 1)}, r"images has the shape \[20, 3, 6, 8\]: .* with 1 or 3 channels"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, r"images has the shape \[0, 6, 8, 3\]: give at least one image"),
        ({"images": IMAGES[:, :, :0]}, r"images has the shape \[20, 6, 0, 3\]: give at least one image, and one pixel"),
        (with_pixel(np.nan), r"images has pixels of nan to nan, which does not .*: save all arrays as 0..255, or all"),
        (with_pixel(np.inf), r"images has pixels of 0.0 to inf"),
        (with_pixel(-64), r"images has pixels of -64.0 to 255.0, which does not .* white: save all arrays as 0..255"),
        (with_pixel(320), r"images has pixels of 0.0 to 320.0, which"),
        ({"images": IMAGES / 127.5 - 1}, r"images has pixels of -1.0 to 1.0, which does not .* white: save all arrays"),
        ({"images": IMAGES.astype(np.int16) - 1}, r"images has pixels of -1 to 254"),
        ({"images": IMAGES.astype(np.int16) + 1}, r"images has pixels of 1 to 256, and white is taken as 255: save"),
        ({"images": IMAGES[:9]}, r"images has 9 images, labels has 20 labels: give one label for each"),
        ({"labels": LABELS / 2}, r"labels holds 0.5: give the classes as whole numbers from 0"),
        ({"labels": LABELS + np.nan}, r"labels holds nan: give the classes"),
        ({"labels": np.eye(3)[LABELS] * 2}, r"labels has the row \[2,0,0\] at 0: an image has one class here, so give"),
        ({"labels": np.eye(3)[LABELS] + np.eye(3)[1]}, r"labels has the row \[1,1,0\] at 0: an image has one class"),
        ({"labels": np.zeros([20, 2, 2])}, r"labels has the shape \[20, 2, 2\]: give \[N\], a class for each image"),
        ({"labels": LABELS.astype(object)}, r"labels is of type object: save whole numbers by labels.astype"),
        ({**TEST, "labels": NAMES[LABELS]}, r"labels and test_labels mix texts and numbers: save all labels as"),
        ({"labels": np.array(["a", ""])[LABELS % 2]}, r"labels holds an empty text: give each image a class"),
        ({"labels": np.array([b"a", b"\xff"])[LABELS % 2]}, r"labels holds bytes that are not UTF-8"),
        ({**TEST, "labels": NAMES[LABELS], "test_labels": [*"xxxx"]}, r"there is no example to train on of class x"),
        ({"labels": np.eye(4)[LABELS]}, r"labels run up to 3, but there is no example to train on of class 3"),
        ({"labels": LABELS - 1}, r"labels holds -1: number the classes from 0"),
        ({"labels": LABELS * 0}, r"all labels are 0: it takes two classes or more"),
        ({"labels": LABELS + 1}, r"labels run up to 3, but there is no example to train on of class 0: number"),
        ({"labels": LABELS * 10**12}, r"labels run up to 2000000000000, .* of class 1, 2, 3, 4, 5, ...: number"),
        ({**TEST, "test_labels": LABELS[:4] + 3}, r"labels run up to 5, but .* of class 3, 4, 5: number"),
        ({"labels": np.arange(20) // 19}, r"class 1 has a single example: it takes two, to train and to test; add one"),
        ({**TEST, "test_images": IMAGES[:4, :5]}, r"images are 6 x 8 x 3, those to evaluate on 5 x 8 x 3: .* size"),
        ({**TEST, "test_images": IMAGES[:4, ..., 0]}, r"images are 6 x 8 x 3, those to evaluate on 6 x 8 x 1: .* chan"),
    ],
)  # fmt: skip
def test_arrays_that_are_refused(write, arrays, message):
    config = write({name: array for name, array in {**MINE, **arrays}.items() if array is not None})
    assert_refused(config, f"mine.npz:? {message}")


def test_resizing_makes_no_channels(write):
    assert_refused(write({**MINE, **TEST, "test_images": IMAGES[:4, :5, :, 0]}, image_size=7), "the same channels")


def flip_the_middle(file: Path) -> None:
    flip_bit(file, file.stat().st_size // 2)


def write_npy(file: Path) -> None:
    with file.open("wb") as stream:
        np.save(stream, IMAGES)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, r"data.path=.*mine.npz can't be read: No such file or directory: give the .npz file"),
        (lambda file: (file.unlink(), file.mkdir()), r"data.path=.*mine.npz is a directory: give the .npz file"),
        (lambda file: (file.unlink(), os.mkfifo(file)), r"data.path=.*mine.npz is not a regular file"),
        (write_npy, r"data.path=.*mine.npz is not an .npz file, or is truncated: write it with numpy.savez"),
        (lambda file: file.write_text("images"), r"mine.npz is not an .npz file"),
        (lambda file: file.write_bytes(b""), r"mine.npz is empty: give the .npz file"),
        (lambda file: file.write_bytes(file.read_bytes()[:1000]), r"mine.npz is not an .npz file"),
        (flip_the_middle, r"mine.npz: images can't be read \(Bad CRC-32 .*\): save it again"),
    ],
    ids=["missing", "folder", "FIFO", "npy", "text", "empty", "truncated", "changed"],
)
def test_files_that_are_refused(write, tmp_path, damage, message):
    config = write(MINE)
    damage(tmp_path / "mine.npz")
    assert_refused(config, message)


# ---- from the command line to a result ----


def test_trained_from_the_command_line(write, command, tmp_path):
    write({**MINE, "images": IMAGES / 255})
    data = ("data=npz", "data.path=mine.npz", "data.val_fraction=0")
    answer = command(*data, "model=lenet5", "batch_size=8", "accum.steps=2", "train.steps=2", "run.name=mine")
    assert answer.code == 0, answer.err
    assert "mine: 17 training and 3 test images, 6 x 8 x 3, 3 classes" in answer.out
    assert "images is float64 with a maximum of 1.0: taken as 0..1" in answer.out
    assert json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text())["step"] == 2


@pytest.mark.parametrize("word", ["nan", "None", "NA"])
def test_a_text_that_may_mean_an_unknown_class_is_refused(write, word):
    labels = np.array(["cat", "dog", word] * 4)
    with pytest.raises(DataError, match=f"labels holds {word} at 2: leave examples of unknown class out, or give this"):
        open_data(write({"images": np.zeros([12, 4, 4], np.uint8), "labels": labels}), seed=0)
