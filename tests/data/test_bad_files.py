"""Files that can't be read, of every kind that a file system knows: named with exit code 3, and never a hang."""

from __future__ import annotations

import os
import socket
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import NpzConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_train_batches
from accumtrain.data.sources import npz_file
from accumtrain.errors import DataError
from tests.data.conftest import assert_refused, write_records
from tests.data.hostile import png


def listen(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(file.parent)  # as the name of a socket is short
        server.bind(file.name)
        os.chdir(here)


FAULTS = {
    "dangling": (lambda file: file.symlink_to("nowhere.png"), "is a link to a file that is not there"),
    "loop": (lambda file: file.symlink_to(file.name), "is a link to a file that is not there"),
    "directory": (Path.mkdir, "is a directory"),
    "FIFO": (os.mkfifo, "is not a regular file"),
    "endless device": (lambda file: file.symlink_to("/dev/zero"), "is not a regular file"),
    "socket": (listen, "is not a regular file"),
    "empty": (Path.touch, "is empty"),
    "text longer than a header": (
        lambda file: file.write_text("no image" * 9),
        "has no PNG, JPEG, WebP, TIFF, GIF or BMP inside",
    ),
}


@pytest.mark.parametrize(("make", "message"), FAULTS.values(), ids=FAULTS)
def test_an_image_that_is_none_is_named(make_folder, folder_config, make, message):
    root = make_folder()
    (root / "ant/03.png").unlink()
    make(root / "ant/03.png")
    assert_refused(folder_config(root), rf"1 file named as an image can't be used: .*ant/03.png {message}")


def test_a_name_that_is_not_utf8_is_shown(make_folder, folder_config):
    root = make_folder()
    (root / "ant" / "03.png").rename(root / "ant" / os.fsdecode(b"caf\xe9.png"))
    with pytest.raises(DataError, match=r"ant/caf\\xe9.png: its name is not UTF-8: rename it") as refused:
        open_data(folder_config(root), seed=0)
    assert str(refused.value).encode(), "it can be printed"


@pytest.mark.parametrize(
    ("owner", "reads", "where"), [(os, "scandir", ""), (os, "scandir", "/ant"), (Path, "open", "/ant/03.png")]
)
def test_what_is_without_permission_is_named(make_folder, folder_config, monkeypatch, owner, reads, where):
    root, read = make_folder(), getattr(owner, reads)

    def refuse(path, *arguments):  # whoever runs the tests may be allowed everything
        if str(path) == f"{root}{where}":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *arguments)

    monkeypatch.setattr(owner, reads, refuse)
    assert_refused(folder_config(root), rf"photos{where} can't be read: Permission denied")


# ---- shards ----


@pytest.mark.parametrize(("fault", "message"), [("FIFO", "not a regular file"), ("dangling", "No such file")])
def test_a_shard_that_is_no_file_is_named(shards, tfrecord_config, fault, message):
    shards[2].unlink()
    FAULTS[fault][0](shards[2])
    assert_refused(tfrecord_config(), f"train-2 can't be read: .*{message}")


def test_a_shard_without_permission_is_named(shards, tfrecord_config, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("accumtrain.data.sources.records.record_index.os.open", refuse)
    assert_refused(tfrecord_config(), "train-0 can't be read: Permission denied")


def test_a_shard_with_a_name_that_is_not_utf8_is_shown(shards, tfrecord_config):
    shards[0].rename(shards[0].with_name(os.fsdecode(b"train-\xff")))
    assert_refused(tfrecord_config(), r"train-\\xff: its name is not UTF-8")


@pytest.mark.parametrize("payload", [b"", b"\xff\xff no example", b"\x0a\x00"])
def test_a_record_that_is_no_example_is_named(shards, tfrecord_config, payload):
    write_records(shards[2], payload)
    with pytest.raises(DataError, match=r"record 0 of .*train-2 is not a tf.train.Example"):
        make_train_batches(open_data(tfrecord_config(), seed=0), batch=4, first=0, seed=0)


# ---- more pixels than memory ----


@pytest.mark.parametrize("augment", ["none", "inception"])
def test_an_image_of_too_many_pixels_is_not_decoded(make_folder, folder_config, monkeypatch, augment):
    root, side = make_folder(), 23_000
    rows = (b"\x00" + b"\xff" * (side // 8 + 1)) * side  # white, in some 1/8,000 of their bytes
    for file in root.glob("*/*.png"):
        file.write_bytes(png(side, side, 1, 0, data=zlib.compress(rows, 1)))
    data = open_data(folder_config(root, image_size=8, augment=augment), seed=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"too many pixels. .529000000"):
        next(iter(make_train_batches(data, batch=2, first=0, seed=0)))
    monkeypatch.setattr(
        "accumtrain.data.images.encoded.decode", lambda *_, **__: pytest.fail("its pixels take gigabytes")
    )
    message = r"is 23000 x 23000 pixels, more than data.max_pixels=89478485: .* data.max_pixels=529000000"
    with pytest.raises(DataError, match=message):
        data.train.inspect_recent()


@pytest.mark.parametrize("encode", [tf.io.encode_png, tf.io.encode_jpeg])
def test_max_pixels_is_the_largest_allowed(make_folder, folder_config, encode):
    root = make_folder()
    for file in root.glob("*/*.png"):
        file.write_bytes(encode(tf.zeros([5, 7, 3], tf.uint8)).numpy())
    next(iter(make_train_batches(open_data(folder_config(root, max_pixels=35), seed=0), batch=8, first=0, seed=0)))
    assert_refused(folder_config(root, max_pixels=34), r"is 7 x 5 pixels, more than data.max_pixels=34")


# ---- arrays ----


def test_tokens_larger_than_the_memory_are_refused_by_what_is_made_of_them(tmp_path, monkeypatch):
    file = tmp_path / "mine.npz"
    np.savez_compressed(file, tokens=np.zeros([100, 1024], np.uint8), labels=np.arange(100) % 2)
    monkeypatch.setattr(npz_file, "spare_bytes", lambda: 2**21)
    assert_refused(NpzConfig(path=str(file)), r"tokens takes 2.3 MB, 2.0 MB of memory are free: save fewer rows, or")


def test_texts_of_no_characters_are_refused(tmp_path):
    for code in (0xD800, 0xFFFFFFFF):
        labels = np.array([code] * 4, np.uint32).view("<U1")
        np.savez(tmp_path / "mine.npz", images=np.zeros([4, 6, 6], np.uint8), labels=labels)
        assert_refused(
            NpzConfig(path=str(tmp_path / "mine.npz")),
            f"labels can't be read .a text holds {code:#x}, which is no char",
        )


def test_arrays_larger_than_the_memory_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "mine.npz"
    np.savez_compressed(file, images=np.zeros([4000, 32, 32], np.uint8), labels=np.arange(4000) % 2)
    assert file.stat().st_size < 50_000
    monkeypatch.setattr(npz_file, "spare_bytes", lambda: 2 * 2**20)
    assert_refused(NpzConfig(path=str(file)), r"images takes 7.8 MB, 2.0 MB of memory are free: save fewer images")
