import os
from pathlib import Path

import numpy as np
import pytest

from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.errors import DataError
from tests.data.conftest import assert_refused, read_pictures, write_records

FORMATS = ("tfrecord", "array_record")


@pytest.mark.parametrize("resident_bytes", [pytest.param(0, marks=pytest.mark.slow), 2**20])
def test_both_formats_give_the_same_batches(prepare_tfds, monkeypatch, resident_bytes):
    monkeypatch.setattr("accumtrain.data.pipeline.RESIDENT_BYTES", resident_bytes)
    one, other = (open_data(prepare_tfds(file_format), seed=0) for file_format in FORMATS)
    assert (one.train.size, one.test.size, one.num_classes, one.shape) == (23, 7, 3, (6, 6, 3))
    for split, numbers in (("train", range(23)), ("test", range(100, 107))):
        assert read_pictures(one, split) == {number: number % 3 for number in numbers}
        assert list(read_pictures(one, split)) == list(read_pictures(other, split))
    for a, b in zip(*(make_train_batches(d, batch=7, first=11, seed=2).take(5) for d in (one, other)), strict=True):
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])


@pytest.mark.parametrize("file_format", FORMATS)
def test_images_are_those_that_tfds_reads(prepare_tfds, file_format):
    import tensorflow_datasets as tfds

    config = prepare_tfds(file_format)
    builder = tfds.builder_from_directory(Path(config.dir) / config.name / "1.0.0")
    stored = builder.as_data_source if file_format == "array_record" else builder.as_dataset
    expected = {int(x["image"][0, 0, 0]): np.asarray(x["image"]) for x in stored("train")}
    (element,) = make_eval_batches(open_data(config, seed=0), batch=23, split="train")
    pixels = np.rint(element["inputs"] * 255).astype(np.uint8)
    for image in pixels:
        np.testing.assert_array_equal(image, expected[int(image[0, 0, 0])])


@pytest.mark.parametrize(
    ("feature", "names"), [("number", []), ("number", ["ant", "bee", "cat"]), ("name", ["ant", "bee", "cat"])]
)
def test_a_label_that_is_no_class_label(prepare_tfds, feature, names):
    data = open_data(prepare_tfds("tfrecord", label_feature=feature, num_classes=3, class_names=names), seed=0)
    assert (data.num_classes, data.class_names) == (3, names)
    assert read_pictures(data, "train") == {number: number % 3 for number in range(23)}


@pytest.mark.parametrize("file_format", FORMATS)
def test_slices_of_splits(prepare_tfds, file_format):
    whole = list(read_pictures(open_data(prepare_tfds(file_format), seed=0), "train"))
    config = prepare_tfds(file_format, train_split="train[20%:]", test_split="train[:5]+test[3:]")
    data = open_data(config, seed=0)
    assert list(read_pictures(data, "train")) == whole[5:]
    assert list(read_pictures(data, "test"))[:5] == whole[:5]
    assert data.test.size == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_split": "val"}, r"data.test_split=val is not a split of tiny_pictures: it has train, test, and slices"),
        ({"train_split": "train[:0]"}, r"data.train_split=train\[:0\] of tiny_pictures is empty"),
        ({"image_feature": "photo"}, r"no Image called data.image_feature=photo: set it to one of image"),
        ({"label_feature": "note"}, r"no ClassLabel called data.label_feature=note: set it to one of label"),
        ({"num_classes": 4}, r"data.num_classes=4: the ClassLabel label of tiny_pictures has 3 classes; leave it out"),
        ({"label_feature": "number", "num_classes": 2}, r"has label 2, with data.num_classes=2 labels are 0..1"),
        ({"label_feature": "name", "num_classes": 3}, r"is the text '\w+': say which classes there are"),
    ],
)
def test_what_it_does_not_have(prepare_tfds, changes, message):
    with pytest.raises(DataError, match=message):  # as it is opened, or as all of it is read into memory
        make_train_batches(open_data(prepare_tfds("tfrecord", **changes), seed=0), batch=4, first=0, seed=0)


@pytest.mark.parametrize("file_format", FORMATS)
def test_truncated_and_missing_shards_are_named(prepare_tfds, file_format):
    config = prepare_tfds(file_format)
    shard = sorted(Path(config.dir).rglob("*train*-00001-of-*"))[0]
    os.truncate(shard, shard.stat().st_size // 2)
    assert_refused(config, f"{shard.name} (is truncated|holds 0 records)")
    shard.unlink()
    assert_refused(config, shard.name)


def test_shard_with_too_few_records_is_named(prepare_tfds):
    config = prepare_tfds("tfrecord")
    shard = sorted(Path(config.dir).rglob("*train*-00001-of-*"))[0]
    write_records(shard, b"alone")
    assert_refused(config, f"{shard.name} holds 1 records, its data set counts")


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_description_is_refused(prepare_tfds, file, content):
    config = prepare_tfds("tfrecord")
    (damaged,) = Path(config.dir).rglob(file)
    damaged.write_text(content)
    assert_refused(config, r"data.name=tiny_pictures: what describes the data set in .* prepare it again")


def test_unprepared_data_set_says_how_to_prepare_it(prepare_tfds, tmp_path):
    config = prepare_tfds("tfrecord")
    config.name, config.dir = "cifar10", str(tmp_path / "it's empty")
    assert_refused(config, r"cifar10 is not prepared in .*Add data\.download=true, or .*python -c .*_and_prepare\(\)")
    config.name = "imagenet2012"
    assert_refused(config, r"by hand into .*empty/downloads/manual\..*ILSVRC2012_img_train.* Then add data\.download")
    config.name = "cifar11"
    assert_refused(config, r"no data set of that name; did you mean cifar10")
