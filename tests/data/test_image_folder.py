from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.inputs.pixels import make_pixels
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.open_data import explain_input_error, open_data
from accumtrain.data.pipeline import make_train_batches
from accumtrain.data.source import Wanted, class_counts
from accumtrain.data.sources.folder import open_folder
from accumtrain.errors import DataError
from accumtrain.fields import CLASSES
from tests.data.conftest import assert_refused, read_explained, read_pictures


def test_class_folders_are_split_by_fraction(make_folder, folder_config):
    data = open_data(folder_config(make_folder(classes=("b", "c", "a"), count=10)), seed=0)
    train, test = read_pictures(data, "train"), read_pictures(data, "test")
    assert (data.num_classes, data.shape, data.notes) == (3, (6, 6, 3), [])
    assert np.bincount(list(test.values())).tolist() == [2, 2, 2]
    names = "bca"
    assert train | test == {number: sorted(names).index(names[number // 10]) for number in range(30)}
    again = open_data(folder_config(make_folder("copy", classes=("b", "c", "a"), count=10)), seed=5)
    assert read_pictures(again, "test") == test


@pytest.mark.parametrize(
    ("train", "second", "split"),
    [
        ("train", "test", "test"),
        ("train", "val", "val"),
        ("train", "valid", "val"),
        ("train", "validation", "val"),
        ("Training", "Testing", "test"),
        ("Train", "Test", "test"),
        ("TRAIN", "VAL", "val"),
        ("seg_train/seg_train", "seg_test/seg_test", "test"),
        ("training_set", "test_set", "test"),
        ("TrainSet", "DevSet", "val"),
        ("images/train", "images/dev", "val"),
        ("train1", "test images", "test"),
        ("training", "evaluation", "test"),
        ("trainset", "validation-data", "val"),
    ],
)
def test_folders_of_splits_are_no_classes(make_folder, folder_config, train, second, split):
    root = make_folder(f"photos/{train}")
    make_folder(f"photos/{second}", count=2)
    data = open_data(folder_config(root.parent if train.startswith("images") else root.parents[train.count("/")]), 0)
    assert (data.class_names, data.splits.keys()) == (["ant", "bee"], {"train", split})
    assert read_pictures(data, "train") == {number: number // 5 for number in range(10)}
    assert read_pictures(data, split) == {number: number // 2 for number in range(4)}


@pytest.mark.parametrize(
    "classes", [("train", "plane"), ("valid", "invalid"), ("test", "dev set"), ("trains", "tests")]
)
def test_a_class_may_be_named_as_a_split(make_folder, folder_config, classes):
    root = make_folder(classes=(*classes, "boat"), count=3)
    assert open_data(folder_config(root), seed=0).class_names == sorted([*classes, "boat"])


TWO_WAYS = ("first/ant", "first/bee", "second/ant", "second/bee")
TRAIN, TRAIN_ALONE = ("train/ant", "train/bee"), ("ant", "bee", "train/steam", "train/diesel")


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (TWO_WAYS, "If first, second are splits and ant, bee the classes"),
        ((*TWO_WAYS, "first/cat"), "the classes, move the images in folders"),
        (("test/ant", "test/bee", "rest/ant", "rest/bee"), "name the splits train, val and test"),
        (("test/ant", "val/ant"), "test, val, named after splits, and no train"),
        (TRAIN_ALONE, "has train/ but neither test/ nor val/"),
        (TRAIN_ALONE, "if train is a class, as ant, bee may be, give its folder another name"),
        ((*TRAIN, "val/ant", "val/bee", "valid/ant", "valid/bee"), "has val/ and valid/: keep one of them"),
        ((*TRAIN, "test/ant", "test/cat"), r"photos/test has the class cat, which train/ lacks \(it has ant, bee\)"),
        (("ant/train", "ant/test", "bee/train", "bee/test"), "make it the other way round, as test/ant/"),
    ],
)
def test_folders_that_are_refused(make_folder, folder_config, folders, message):
    root = make_folder(classes=folders, count=2)
    assert_refused(folder_config(root), message)


def test_both_readings_work_as_the_refusal_says(make_folder, folder_config):
    root = make_folder("splits", TWO_WAYS, count=3)
    (root / "first").rename(root / "train")
    (root / "second").rename(root / "test")
    assert open_data(folder_config(root), seed=0).class_names == ["ant", "bee"]
    root = make_folder("classes", TWO_WAYS, count=3)
    for inner in TWO_WAYS:
        for file in (root / inner).iterdir():
            file.rename(root / inner.split("/")[0] / f"{inner[-3:]}{file.name}")
    assert open_data(folder_config(root), seed=0).class_names == ["first", "second"]


def test_a_test_folder_without_labels(make_folder, folder_config):
    root = make_folder("photos/train").parent
    make_folder("photos", classes=("test",), count=3)
    data, alone = (open_data(folder_config(path), seed=0) for path in (root, root / "train"))
    assert read_pictures(data, "test") == read_pictures(alone, "test")
    assert data.notes == [
        f"{root}/test/ has no labels, as its images are in no class folders, and is not read: "
        f"use job=predict predict.input={root}/test for it"
    ]
    make_folder("photos/dev", count=2)
    assert open_data(folder_config(root), seed=0).splits.keys() == {"train", "val"}


def test_all_images_whatever_split_they_are_in(make_folder, folder_config):
    root = make_folder("photos/test", classes=("bee",), count=1).parent
    of_run = TrainedOn(make_pixels(folder_config(root), (6, 6, 3), 255), CLASSES, ["ant", "bee"])

    def count() -> dict[str, int]:
        source = open_folder(folder_config(root), Wanted(of_run=of_run))
        assert source.splits.keys() == {"train"}
        return dict(zip(source.class_names, class_counts(source.train, source.num_classes), strict=True))

    assert count() == {"bee": 1}
    make_folder("photos/Training", count=2)
    assert count() == {"ant": 2, "bee": 3}


def test_other_folders_beside_the_splits_are_named(make_folder, folder_config):
    root = make_folder("photos/train").parent
    make_folder("photos/test")
    make_folder("photos", classes=("seg_pred",))
    assert open_data(folder_config(root), seed=0).notes == ["not read, as they are not named after a split: seg_pred"]


def test_a_class_without_test_images(make_folder, folder_config):
    root = make_folder("photos/train", classes=("ant", "bee", "cat")).parent
    make_folder("photos/test", classes=("bee", "cat"))
    data = open_data(folder_config(root), seed=0)
    assert np.unique(list(read_pictures(data, "test").values())).tolist() == [1, 2]
    assert data.notes == ["test/ has no images of ant"]


def test_two_spellings_of_a_name_are_one_class(make_folder, folder_config):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    root = make_folder("photos/train", classes=(composed, "cafz")).parent
    make_folder("photos/test", classes=(decomposed, "cafz"))
    data = open_data(folder_config(root), seed=0)
    assert data.class_names == ["cafz", composed]
    assert np.bincount(list(read_pictures(data, "test").values())).tolist() == [5, 5]
    (root / "train" / composed).rename(root / "train" / decomposed)
    assert open_data(folder_config(root), seed=0).fingerprint == data.fingerprint
    make_folder("photos/train", classes=(composed,), count=3)  # beside the other spelling
    assert np.bincount(open_data(folder_config(root), seed=0).train.known_labels).tolist() == [5, 8]


def test_jpeg_capital_suffix_and_grey(make_folder, folder_config):
    root = make_folder()
    grey = tf.constant(77, tf.uint8, [6, 6, 1])
    (root / "ant" / "photo.JPG").write_bytes(tf.io.encode_jpeg(grey, quality=100).numpy())
    (root / "ant" / "scan.Jpeg").write_bytes(tf.io.encode_png(grey).numpy())
    data = open_data(folder_config(root), seed=0)
    assert data.train.size + data.test.size == 12
    assert {77: 0}.items() <= (read_pictures(data, "train") | read_pictures(data, "test")).items()


def test_other_files_are_counted_and_named(make_folder, folder_config):
    root = make_folder()
    (root / "ant" / "readme.txt").write_text("x")
    (root / "notes.md").write_text("x")
    (root / "bee" / ".DS_Store").write_text("x")
    (root / ".git").mkdir()
    (note,) = open_data(folder_config(root), seed=0).notes
    suffixes = ".png, .jpg, .jpeg, .jfif, .webp, .tif, .tiff, .gif, .bmp"
    names = f"{root}/ant/readme.txt, {root}/notes.md"
    assert note == f"ignored, as their names end in none of {suffixes}: 2 files: {names}"


# ---- what is refused when the folder is opened ----


def break_single_image(root: Path) -> None:
    (root / "cat").mkdir()
    (root / "ant" / "00.png").rename(root / "cat" / "00.png")


def break_text_inside(root: Path) -> None:
    (root / "ant" / "03.png").write_text("no image at all")
    (root / "bee" / "04.png").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: root.rename(root.with_name("elsewhere")), r"data.path=.*photos is not a directory"),
        (lambda root: shutil.rmtree(root / "bee"), r"photos has 1 class folder"),
        (lambda root: (root / "cat").mkdir(), r"class folder .*cat holds no image, whose name ends in .png"),
        (break_single_image, r"class cat has a single image, .*cat/00.png"),
        (
            break_text_inside,
            r"2 files named as an image .*ant/03.png has no PNG, JPEG, .* or BMP inside; .*bee/04.png is empty",
        ),
    ],
)
def test_refused(make_folder, folder_config, damage, message):
    root = make_folder()
    damage(root)
    assert_refused(folder_config(root), message)


# ---- what turns up while reading ----


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:60])


def enlarge(file: Path) -> None:
    file.write_bytes(tf.io.encode_png(tf.zeros([7, 6, 3], tf.uint8)).numpy())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"ant/03.png can't be decoded as an image \(60 bytes\)"),
        (enlarge, r"ant/03.png is 6 x 7 pixels, other images are 6 x 6 pixels: set data.image_size"),
        (Path.unlink, r"ant/03.png can't be read"),
    ],
)
def test_bad_file_is_named(make_folder, folder_config, damage, message, monkeypatch):
    root = make_folder()
    data = open_data(folder_config(root), seed=0)
    damage(root / "ant" / "03.png")

    with pytest.raises(DataError, match=message):
        make_train_batches(data, batch=8, first=0, seed=0)

    monkeypatch.setattr("accumtrain.data.pipeline.RESIDENT_BYTES", 0)
    with pytest.raises(DataError, match=message):
        read_explained(data, make_train_batches(data, batch=8, first=0, seed=0).take(2))


def test_errors_of_others_are_left_alone(make_folder, folder_config):
    data = open_data(folder_config(make_folder()), seed=0)
    next(iter(make_train_batches(data, batch=8, first=0, seed=0)))
    assert explain_input_error(tf.errors.InvalidArgumentError(None, None, "NaN"), data) is None


def test_images_of_many_sizes_are_resized(make_folder, folder_config):
    root = make_folder()
    enlarge(root / "ant" / "03.png")
    data = open_data(folder_config(root, image_size=5), seed=0)
    assert next(iter(make_train_batches(data, batch=8, first=0, seed=0)))["inputs"].shape == (8, 5, 5, 3)
