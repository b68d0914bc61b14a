from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.sources.records import record_index
from accumtrain.data.sources.records.record_index import index_shards
from accumtrain.errors import ConfigError, DataError
from tests.data.conftest import assert_refused, example, picture, png, read_explained, write_records


@pytest.mark.parametrize("resident_bytes", [0, 2**20])
def test_examples_of_all_shards_in_order(make_shards, tfrecord_config, monkeypatch, resident_bytes):
    monkeypatch.setattr("accumtrain.data.pipeline.RESIDENT_BYTES", resident_bytes)
    make_shards("train")
    make_shards("test", (2,))
    data = open_data(tfrecord_config(), seed=0)
    assert (data.train.size, data.test.size, data.num_classes, data.shape) == (7, 2, 3, (6, 6, 3))
    (element,) = make_eval_batches(data, batch=7, split="train")
    assert np.rint(element["inputs"][:, 0, 0, 0] * 255).tolist() == list(range(7))
    assert element["targets"].numpy().tolist() == [0, 1, 2, 0, 1, 2, 0]


# ---- the index ----


def names(paths: list[Path]) -> list[str]:
    return [str(path) for path in paths]


def index(paths: list[Path]) -> list[list[int]]:
    return [starts.tolist() for starts in index_shards(names(paths))]


@pytest.fixture
def walked(monkeypatch):
    """The shards that are read to index them."""
    walk, found = record_index._find_starts, []
    monkeypatch.setattr(record_index, "_find_starts", lambda path, size: found.append(path) or walk(path, size))
    return found


def test_index_finds_what_tensorflow_reads(make_shards):
    for path in make_shards("train"):
        (starts,) = index_shards([str(path)])
        content = path.read_bytes()
        records = [content[start + 12 : end - 4] for start, end in pairwise(starts)]
        assert records == list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def test_index_is_made_once(make_shards, monkeypatch):
    paths = make_shards("train")
    before = index(paths)
    monkeypatch.setattr(record_index, "_find_starts", None)
    assert index(paths) == before


def test_index_is_renewed_for_changed_shards_only(make_shards, walked):
    paths = make_shards("train")
    index(paths)
    walked.clear()
    write_records(paths[1], b"new")
    os.utime(paths[2], ns=(0, 0))
    assert index(paths)[1] == [0, 12 + 3 + 4]
    assert walked == names(paths[1:])


def index_file(paths: list[Path]) -> Path:
    (place,) = paths[0].parent.glob(".accumtrain_index_*")
    return place


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"garbage"])
def test_damaged_index_is_replaced(make_shards, damage):
    paths = make_shards("train")
    before = index(paths)
    index_file(paths).write_bytes(damage)
    assert index(paths) == before
    assert index_file(paths).stat().st_size > 100


NUMBERS = {"stamps": [[1, 2], [3, 4]], "counts": [2, 2], "starts": [0, 19, 0, 19]}


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"starts": [0]},
        NUMBERS | {"stamps": [1, 2]},
        NUMBERS | {"counts": [2]},
        NUMBERS | {"counts": [-1, 5]},
        NUMBERS | {"counts": [9, 9]},
        NUMBERS | {"starts": []},
        NUMBERS | {"starts": [0.0, 19.0, 0.0, 19.0]},
        NUMBERS | {"starts": ["a"] * 4},
        NUMBERS | {"starts": 5},
    ],
)
def test_an_index_of_other_arrays_is_made_anew(make_shards, arrays):
    paths = make_shards("train", (3, 2))
    before = index(paths)
    content = io.BytesIO()
    np.savez(content, **{name: np.array(value) for name, value in arrays.items()})
    index_file(paths).write_bytes(hashlib.sha256(content.getvalue()).digest() + content.getvalue())
    assert index(paths) == before
    packed = io.BytesIO()
    np.savez_compressed(packed, **{name: np.zeros(10**5, np.int64) for name in NUMBERS})
    huge = content.getvalue().replace(b"(2,)", b"(9" + b"9" * 15 + b",)")
    for others in (b"no zip", b"", packed.getvalue(), huge):
        index_file(paths).write_bytes(hashlib.sha256(others).digest() + others)
        assert index(paths) == before


@pytest.mark.parametrize("flips", [50, pytest.param(650, marks=pytest.mark.slow)])
def test_a_flipped_bit_of_the_index_changes_nothing(make_shards, walked, flips):
    paths = make_shards("train")
    before = index(paths)
    content, draw = index_file(paths).read_bytes(), np.random.default_rng(0)
    walked.clear()
    for bit in draw.choice(len(content) * 8, flips, replace=False).tolist():
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        index_file(paths).write_bytes(damaged)
        assert index(paths) == before
        assert index_file(paths).read_bytes() == content, "it is written again"
    assert walked == names(paths) * flips


def test_an_index_that_is_no_file_is_not_read(make_shards):
    paths = make_shards("train")
    before = index(paths)
    index_file(paths).unlink()
    os.mkfifo(paths[0].parent / record_index._list_index_files(names(paths))[0].name)  # reading it would hang
    assert index(paths) == before


@pytest.mark.parametrize("place", [0, 1, -1])
def test_positions_that_can_not_be_those_of_a_shard_are_not_believed(make_shards, monkeypatch, place):
    """Not even if the file is whole, as that of another program may be."""
    paths = make_shards("train", (4,))
    (starts,) = index_shards(names(paths))
    wrong = starts.copy()
    wrong[place] += starts[1]  # no record, or one beyond the file
    stamps = {str(path): record_index._read_stamp(str(path)) for path in paths}
    record_index._save(stamps, dict(zip(stamps, [wrong], strict=True)))
    np.testing.assert_array_equal(index_shards(names(paths))[0], starts)


def test_index_goes_to_the_cache_where_data_is_read_only(make_shards, cache_home, monkeypatch):
    paths = make_shards("train")
    make = record_index.tempfile.TemporaryDirectory

    def refuse(**options):
        if options["dir"] == paths[0].parent:
            raise PermissionError
        return make(**options)

    monkeypatch.setattr(record_index.tempfile, "TemporaryDirectory", refuse)
    index(paths)
    assert len(list((cache_home / "accumtrain").glob("index_*"))) == 1
    assert not list(paths[0].parent.glob(".accumtrain_index_*"))
    monkeypatch.setattr(record_index, "_find_starts", None)
    assert len(index(paths)) == 3


def test_index_of_another_user_in_a_shared_folder_stays(make_shards, cache_home, monkeypatch):
    paths = make_shards("train")
    replace = Path.replace

    def refuse(self, target):
        if target.parent == paths[0].parent:
            raise PermissionError
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    assert len(index(paths)) == 3
    assert len(list((cache_home / "accumtrain").glob("index_*"))) == 1
    assert not list(paths[0].parent.glob(".accumtrain_index_*"))


def test_index_that_does_not_fit_on_the_disk_leaves_nothing(make_shards, cache_home, monkeypatch):
    write = Path.write_bytes

    def full(file, content):
        write(file, content[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    paths = make_shards("train")
    monkeypatch.setattr(Path, "write_bytes", full)
    assert len(index(paths)) == 3
    assert not list(paths[0].parent.glob(".accumtrain_index_*"))
    assert not list((cache_home / "accumtrain").iterdir())


def test_index_may_be_read_by_others(make_shards):
    paths = make_shards("train")
    index(paths)
    (paths[0].parent / "plain").touch()
    assert index_file(paths).stat().st_mode == (paths[0].parent / "plain").stat().st_mode


# ---- labels and images as people store them ----

CLASSES = ["tea", "cafe\u0301", "10"]  # é in two characters
TEXTS = [b"tea", "caf\u00e9".encode(), b"10"]  # and in one


def write_splits(tmp_path: Path, stored: Callable[[int], dict[str, Any]]) -> None:
    for split, numbers in {"train": range(9), "test": range(9, 12)}.items():
        examples = (example({"image": png(number), **stored(number)}) for number in numbers)
        write_records(tmp_path / f"{split}-0", *examples)


@pytest.mark.parametrize(
    ("label", "keys"),
    [
        (lambda number: float(number % 3), {}),
        (lambda number: [int(number % 3 == label) for label in range(3)], {}),
        (lambda number: [float(number % 3 == label) for label in range(3)], {}),
        (lambda number: TEXTS[number % 3], {"class_names": CLASSES}),
        (lambda number: number % 3, {"class_names": CLASSES}),
    ],
    ids=["float", "one-hot", "one-hot floats", "text", "numbers with names"],
)
def test_labels_of_other_kinds(tmp_path, tfrecord_config, label, keys):
    write_splits(tmp_path, lambda number: {"label": label(number)})
    data = open_data(tfrecord_config(**keys), seed=0)
    assert (data.num_classes, data.class_names) == (3, keys.get("class_names", []))
    (element,) = make_eval_batches(data, batch=9, split="train")
    assert element["targets"].numpy().tolist() == [0, 1, 2] * 3


@pytest.mark.parametrize("channels", [1, 3])
def test_raw_pixels(tmp_path, tfrecord_config, channels):
    pixels = [picture(number, 5, 7)[..., :channels] for number in range(12)]
    write_splits(tmp_path, lambda number: {"image": pixels[number].tobytes(), "label": number % 3})
    assert_refused(tfrecord_config(), r"has no PNG.* inside: .* or set data.raw_shape=\[height,width,channels\]")
    data = open_data(tfrecord_config(raw_shape=[5, 7, channels]), seed=0)
    (element,) = make_eval_batches(data, batch=9, split="train")
    expected = np.broadcast_to(np.stack(pixels[:9]), [9, 5, 7, 3])
    np.testing.assert_array_equal(element["inputs"], expected / np.float32(255))
    with pytest.raises(DataError, match=rf"holds {35 * channels} bytes of pixels, and data.raw_shape=.5,5,3. takes 75"):
        open_data(tfrecord_config(raw_shape=[5, 5, 3]), seed=0)


@pytest.mark.parametrize(
    ("label", "keys", "message"),
    [
        (0.5, {}, r"that holds 0.5: give the classes as whole numbers from 0$"),
        ([1, 1, 0], {}, r"that has the row \[1,1,0\] at 0: an image has one class here"),
        ([1, 0, 0, 0], {}, r"that holds 4 numbers: give one for each of data.num_classes=3$"),
        (b"tea", {}, r"that is the text 'tea': say which classes there are .*, as in data.class_names=\[tea,...\]$"),
        (b"teas", {"class_names": CLASSES}, r"that is the text 'teas', not one of data.class_names: did you mean tea"),
        ([b"tea", b"10"], {"class_names": CLASSES}, r"that holds 2 texts: an image has one class here, so give one"),
    ],
)  # fmt: skip
def test_labels_that_are_refused(tmp_path, tfrecord_config, label, keys, message):
    write_splits(tmp_path, lambda number: {"label": label})
    assert_refused(tfrecord_config(**keys), r"record 0 of .*train-0 has a label 'label' " + message)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cat", "cat", "dog"], r"names cat more than once; name each class once"),
        (["cat", "dog"], r"names 2 classes, and data.num_classes=3; set data.num_classes=2, or name all classes"),
        (["caf\u00e9", "cafe\u0301", "tea"], r"names caf\u00e9 more than once"),
    ],
)
def test_each_class_has_one_name(tfrecord_config, names, message):
    with pytest.raises(ConfigError, match=message):
        tfrecord_config(class_names=names).check()


# ---- what is refused ----


def compress(path: Path) -> None:
    with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
        writer.write(b"record")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-7]), "truncated or not a TFRecord file: record 2 at byte"),
        (
            lambda file: file.write_bytes(file.read_bytes() + b"\5\0"),
            "truncated or not a TFRecord file: record 3 at byte",
        ),
        (lambda file: file.write_text("a text, no records"), "truncated or not a TFRecord file: record 0 at byte 0"),
        (compress, "compressed"),
    ],
    ids=["cut payload", "cut header", "text", "compressed"],
)
def test_damaged_shard_is_named(shards, tfrecord_config, damage, message):
    damage(shards[2])
    assert_refused(tfrecord_config(), f"train-2 is {message}")


def test_globs_without_records(make_shards, tfrecord_config):
    make_shards("train")
    assert_refused(tfrecord_config(), r"data.test_path=.*test-\* matches no file")
    make_shards("test", (0,))
    assert_refused(tfrecord_config(), r"data.test_path=.* matches 1 file\(s\) without a single record")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_feature": "pixels"}, r"'pixels': set data.image_feature to one of its features: image .*, label"),
        ({"label_feature": "image"}, r"has a label 'image' that holds bytes that are not UTF-8: .*; or set data.label"),
        ({"label_feature": "class"}, r"no value called 'class': set data.label_feature to one of its features: image"),
        ({"num_classes": 1}, r"record 1 of .*train-0 has label 1, with data.num_classes=1 labels are 0..0"),
    ],
)
def test_features_that_do_not_fit(shards, tfrecord_config, changes, message):
    with pytest.raises(DataError, match=message):
        make_train_batches(open_data(tfrecord_config(**changes), seed=0), batch=4, first=0, seed=0)


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": b"no image"}, r"record 0 of .*train-9 has no PNG, JPEG, WebP, TIFF, GIF or BMP inside"),
        ({"label": -1}, r"record 0 of .*train-9 has label -1"),
    ],
)
def test_bad_record_is_named_while_training(make_shards, tfrecord_config, tmp_path, changes, message):
    make_shards("train")
    make_shards("test")
    make_shards("bad", (1,), **changes)[0].rename(tmp_path / "train-9")
    data = open_data(tfrecord_config(), seed=0)
    with pytest.raises(DataError, match=message):
        read_explained(data, make_eval_batches(data, batch=4, split="train"))


@pytest.mark.usefixtures("streamed")
def test_shard_that_vanishes_is_named(shards, tfrecord_config):
    data = open_data(tfrecord_config(), seed=0)
    shards[2].unlink()
    with pytest.raises(DataError, match=r"train-2 can't be read any more: No such file"):
        read_explained(data, make_eval_batches(data, batch=4, split="train"))
