"""data.on_error=skip: bad examples have weight 0, are listed once, and everything else stays where it was."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data import pipeline
from accumtrain.data.images.damage import leave_out_damaged
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.source import Dataset, class_counts
from accumtrain.errors import DataError
from tests.data.conftest import flip_bit, join

BAD_TRAIN, BAD_TEST = 3, 1  # numbers of the examples that are spoiled
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("tfrecord", "tfds tfrecord", "tfds array_record")]


@pytest.fixture(params=["folder", *SLOW])
def spoiled(request, make_folder, folder_config, make_shards, tfrecord_config, prepare_tfds):
    """Return a configuration, and a function that spoils two examples and returns parts of their names."""
    source, _, file_format = request.param.partition(" ")
    if source == "folder":
        root = make_folder("photos/train").parent
        make_folder("photos/test", count=2)
        spoil = [root / "train" / "ant" / "03.png", root / "test" / "ant" / "01.png"]
        config = folder_config(root)
    elif source == "tfrecord":
        spoil = [make_shards("train", (10,))[0], make_shards("test", (4,))[0]]
        config = tfrecord_config()
    else:
        config = prepare_tfds(file_format)
        spoil = [sorted(Path(config.dir).rglob(f"*{name}*-00000-of-*"))[0] for name in ("train", "test")]
    if source == "folder":
        places, names = [-30, -30], [str(file) for file in spoil]
    else:
        places = [nth(spoil[0], b"IDAT", BAD_TRAIN), nth(spoil[1], b"IDAT", BAD_TEST)]
        names = [f"record 3 of {spoil[0]}", f"record 1 of {spoil[1]}"]

    def damage():
        for file, place in zip(spoil, places, strict=True):
            flip_bit(file, place)
        return names

    return config, damage


def nth(file: Path, word: bytes, number: int) -> int:
    """A place in the file some bytes after the n-th time that the word is in it, from 0."""
    content, place = file.read_bytes(), -1
    for _ in range(number + 1):
        place = content.index(word, place + 1)
    return place + 8


def first_batches(data: Dataset, first: int = 0) -> dict[str, np.ndarray]:
    return join(make_train_batches(data, batch=4, first=first, seed=0).take(10))


@pytest.mark.parametrize(
    ("changes", "resident_bytes"),
    [
        pytest.param({}, 2**20, id="in memory", marks=pytest.mark.slow),
        pytest.param({"image_size": 5, "augment": "inception"}, 0, id="streamed"),
    ],
)
def test_bad_examples_have_no_weight_and_others_stay(spoiled, changes, resident_bytes, monkeypatch):
    monkeypatch.setattr(pipeline, "RESIDENT_BYTES", resident_bytes)
    config, damage = spoiled
    config = replace(config, on_error="skip", **changes)
    before = open_data(config, seed=0)
    expected = {"train": first_batches(before), "test": join(make_eval_batches(before, batch=4))}
    assert before.skipped == []
    assert "left out" not in before.facts

    names = damage()
    data = open_data(config, seed=0)
    found = {"train": first_batches(data), "test": join(make_eval_batches(data, batch=4))}
    for split in found:
        zero = found[split]["weight"] != expected[split]["weight"]
        assert zero.any()
        assert (found[split]["weight"][zero] == 0).all()
        for key in ("inputs", "targets"):
            np.testing.assert_array_equal(found[split][key][~zero], expected[split][key][~zero])
        assert np.isfinite(found[split]["inputs"]).all()
    order = np.flatnonzero(join(make_eval_batches(data, batch=1, split="train"))["weight"] == 0).tolist()
    assert order == [BAD_TRAIN]
    assert [(each["split"], each["name"]) for each in data.skipped] == [("train", names[0]), ("test", names[1])]
    assert all(example["reason"].startswith(("is damaged", "can't be decoded")) for example in data.skipped)

    later = first_batches(open_data(config, seed=0), first=8)  # as in a continued run
    for key, value in later.items():
        np.testing.assert_array_equal(value[:24], found["train"][key][8:32])


def test_without_it_the_same_example_ends_the_run(spoiled):
    config, damage = spoiled
    names = damage()
    with pytest.raises(DataError) as refused:
        make_train_batches(open_data(config, seed=0), batch=4, first=0, seed=0)
    assert str(refused.value).startswith(names[0])
    assert "data.on_error=skip" in str(refused.value)


@pytest.mark.parametrize("resident_bytes", [0, 2**20])
def test_a_whole_batch_of_bad_images(make_folder, folder_config, monkeypatch, resident_bytes):
    monkeypatch.setattr(pipeline, "RESIDENT_BYTES", resident_bytes)
    root = make_folder("photos/train").parent
    make_folder("photos/test", count=4)
    for file in sorted(root.glob("test/*/*.png"))[:4]:
        file.write_bytes(file.read_bytes()[:40])
    data = open_data(folder_config(root, on_error="skip"), seed=0)
    first, second = make_eval_batches(data, batch=4)
    assert first["weight"].numpy().tolist() == [0] * 4
    assert not first["inputs"].numpy().any()
    assert second["weight"].numpy().tolist() == [1] * 4
    assert len(data.skipped) == 4
    assert data.facts == "10 training and 4 test images, 6 x 6 x 3, 2 classes, 4 more left out"


def test_files_that_are_no_images_are_not_counted(make_folder, folder_config):
    root = make_folder(count=10)
    for file in sorted(root.glob("*/*.png"))[:12:2]:
        file.write_bytes(b"no image")
    data = open_data(folder_config(root, on_error="skip", val_fraction=0.2), seed=0)
    left = {name: split.size - len(split.skipped) for name, split in data.splits.items()}
    assert (sum(left.values()), len(data.skipped)) == (14, 6)
    assert data.sizes == f"{left['train']} training, {left['val']} validation and {left['test']} test"


@pytest.mark.parametrize("resident_bytes", [0, 2**20])
def test_a_split_without_a_good_image_is_refused(make_folder, folder_config, monkeypatch, resident_bytes):
    monkeypatch.setattr(pipeline, "RESIDENT_BYTES", resident_bytes)
    root = make_folder("photos/train").parent
    make_folder("photos/test", count=1)
    for file in root.glob("test/*/*.png"):
        file.write_bytes(file.read_bytes()[:40])
    data = open_data(folder_config(root, on_error="skip"), seed=0)
    with pytest.raises((DataError, tf.errors.OpError)):
        list(make_eval_batches(data, batch=4))
    with pytest.raises(DataError, match=r"none of 2 examples can be used, the first: .*ant/00.png can't be decoded"):
        data.test.inspect_recent()
    for file in root.glob("train/*/*.png"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match=r"none of 10 examples can be used, the first: .*ant/00.png is empty"):
        open_data(folder_config(root, on_error="skip"), seed=0)


def test_files_that_must_not_be_opened_are_left_out(make_folder, folder_config):
    root = make_folder("photos/train").parent
    make_folder("photos/test", count=4)
    fifo, big, gone = (root / "train" / "ant" / f"0{number}.png" for number in range(3))
    fifo.unlink()
    os.mkfifo(fifo)
    big.write_bytes(tf.io.encode_png(tf.zeros([9, 9, 3], tf.uint8)).numpy())
    data = open_data(folder_config(root, on_error="skip", max_pixels=36), seed=0)
    gone.unlink()
    assert join(make_eval_batches(data, batch=1, split="train"))["weight"].tolist() == [0, 0, 0] + [1] * 7
    assert [example["reason"] for example in data.skipped] == [
        "is not a regular file",
        "is 9 x 9 pixels, more than data.max_pixels=36",
        "can't be read: No such file or directory",
    ]


@pytest.mark.usefixtures("streamed")
def test_what_contradicts_the_configuration_still_ends_the_run(make_folder, folder_config):
    root = make_folder("photos/train").parent
    make_folder("photos/test", count=4)
    (root / "train/bee/02.png").write_bytes(tf.io.encode_png(tf.zeros([6, 9, 3], tf.uint8)).numpy())
    data = open_data(folder_config(root, on_error="skip"), seed=0)
    with pytest.raises(tf.errors.OpError):
        list(make_eval_batches(data, batch=4, split="train"))
    with pytest.raises(DataError, match=r"bee/02.png is 9 x 6 pixels, other images are 6 x 6 pixels: set data.image"):
        data.train.inspect_recent()
    assert data.skipped == []


def test_labels_of_damaged_records_do_not_count(make_shards, tfrecord_config):
    train, _ = make_shards("train", (10,))[0], make_shards("test", (4,))
    for number in (1, 4):  # labels go round 0, 1, 2
        flip_bit(train, nth(train, b"IDAT", number))
    data = open_data(tfrecord_config(on_error="skip"), seed=0)
    assert class_counts(data.train, 3) == [4, 1, 3]


@pytest.mark.parametrize("resident_bytes", [0, 2**20])
def test_a_jpeg_that_decodes_though_it_is_damaged_is_left_out(tmp_path, monkeypatch, folder_config, resident_bytes):
    monkeypatch.setattr(pipeline, "RESIDENT_BYTES", resident_bytes)
    for number in range(8):
        file = tmp_path / "photos" / ("ant", "bee")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(60, 120, [48, 48, 3], np.uint8)
        content = bytearray(tf.io.encode_jpeg(pixels, quality=95).numpy())
        if number == 2:
            content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
        file.write_bytes(content)
    data = open_data(folder_config(tmp_path / "photos", on_error="skip"), seed=0)
    leave_out_damaged(data.whole_splits.values())
    weights = {name: join(make_eval_batches(data, batch=1, split=name))["weight"] for name in ("train", "test")}
    assert sorted(np.concatenate(list(weights.values()))) == [0.0, *[1.0] * 7]
    (bad,) = data.skipped
    assert bad["name"] == str(tmp_path / "photos/ant/2.jpg")
    assert bad["reason"].startswith("is damaged, though it can be decoded: Corrupt JPEG data: ")
    asked = data.inputs.open_named([str(tmp_path / "photos/ant")], folder_config(tmp_path), "predict.input")
    assert [example["name"] for example in asked.data.skipped] == [bad["name"]]
