"""Files that can't be read, of every kind that a file system knows: named with exit code 3, and never a hang."""

from __future__ import annotations

import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import FolderConfig, NpzConfig, TfrecordConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import train_batches
from accumtrain.data.sources import npz
from accumtrain.errors import DataError

MakeFolder = Callable[..., Path]
MakeShards = Callable[..., list[Path]]
MakeConfig = Callable[..., FolderConfig]


def dangle(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere.png")


def loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")  # endless, if it is read


def listening(file: Path) -> None:
    file.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(file.parent)  # as the name of a socket is short
        server.bind(file.name)
        os.chdir(here)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def no_image(file: Path) -> None:
    file.write_bytes(b"a text, not an image at all, and longer than a header")


FAULTS = [
    (dangle, "is a link to a file that is not there"),
    (loop, "is a link to a file that is not there"),
    (directory, "is a directory"),
    (fifo, "is no regular file"),
    (device, "is no regular file"),
    (listening, "is no regular file"),
    (empty, "is empty"),
    (no_image, "has no PNG, JPEG, WebP or BMP inside"),
]
of_every_fault = pytest.mark.parametrize(("damage", "message"), FAULTS, ids=[each.__name__ for each, _ in FAULTS])


@of_every_fault
def test_an_image_that_is_none_is_named(
    make_folder: MakeFolder, folder_config: MakeConfig, damage: Callable[[Path], None], message: str
) -> None:
    root = make_folder()
    damage(root / "ant" / "03.png")
    with pytest.raises(DataError, match=rf"1 file named as an image can't be used: .*ant/03.png {message}"):
        open_data(folder_config(root), seed=0)


def test_a_name_that_is_not_utf8_is_shown(make_folder: MakeFolder, folder_config: MakeConfig) -> None:
    root = make_folder()
    (root / "ant" / "03.png").rename(root / "ant" / os.fsdecode(b"caf\xe9.png"))
    with pytest.raises(DataError, match=r"ant/caf\\xe9.png: its name is not UTF-8: rename it") as refused:
        open_data(folder_config(root), seed=0)
    assert str(refused.value).encode(), "it can be printed"


@pytest.mark.parametrize("where", ["photos", "photos/ant"])
def test_a_folder_without_permission_is_named(
    make_folder: MakeFolder, folder_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    root = make_folder()
    iterdir = Path.iterdir

    def refuse(folder: Path) -> object:  # whoever runs the tests may be allowed everything
        if folder == root.parent / where:
            raise PermissionError(13, "Permission denied", str(folder))
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match=rf"{where} can't be read: Permission denied"):
        open_data(folder_config(root), seed=0)


def test_a_file_without_permission_is_named(
    make_folder: MakeFolder, folder_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder()
    opened = Path.open

    def refuse(file: Path, *arguments: object) -> object:
        if file.name == "03.png":
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file, *arguments)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"ant/03.png can't be read: Permission denied"):
        open_data(folder_config(root), seed=0)


# --- shards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("damage", "message"), [(fifo, "no regular file"), (dangle, "No such file")])
def test_a_shard_that_is_no_file_is_named(
    make_shards: MakeShards,
    tfrecord_config: Callable[..., TfrecordConfig],
    damage: Callable[[Path], None],
    message: str,
) -> None:
    damage(make_shards("train")[2])
    make_shards("test")
    with pytest.raises(DataError, match=f"train-2 can't be read: .*{message}"):
        open_data(tfrecord_config(), seed=0)


def test_a_shard_without_permission_is_named(
    make_shards: MakeShards, tfrecord_config: Callable[..., TfrecordConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_shards("train")
    make_shards("test")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("accumtrain.data.sources.record_index.os.open", refuse)
    with pytest.raises(DataError, match="train-0 can't be read: Permission denied"):
        open_data(tfrecord_config(), seed=0)


def test_a_shard_with_a_name_that_is_not_utf8_is_shown(
    make_shards: MakeShards, tfrecord_config: Callable[..., TfrecordConfig]
) -> None:
    shard = make_shards("train")[0]
    shard.rename(shard.with_name(os.fsdecode(b"train-\xff")))
    make_shards("test")
    with pytest.raises(DataError, match=r"train-\\xff: its name is not UTF-8"):
        open_data(tfrecord_config(), seed=0)


@pytest.mark.parametrize("payload", [b"", b"\xff\xff no example", b"\x0a\x00"])
def test_a_record_that_is_no_example_is_named(
    make_shards: MakeShards, tfrecord_config: Callable[..., TfrecordConfig], payload: bytes
) -> None:
    shard = make_shards("train")[2]
    with tf.io.TFRecordWriter(str(shard)) as writer:
        writer.write(payload)
    make_shards("test")
    with pytest.raises(DataError, match=r"record 0 of .*train-2 is no tf.train.Example"):
        train_batches(open_data(tfrecord_config(), seed=0), batch=4, first=0, seed=0)


# --- more pixels than memory --------------------------------------------------------------------------------------


def huge_png(side: int) -> bytes:
    """A PNG of `side` x `side` white pixels, in some 1/8,000 of their bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    row = b"\x00" + b"\xff" * (side // 8 + 1)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(row * side, 1))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("augment", ["none", "inception"])
def test_an_image_of_too_many_pixels_is_not_decoded(
    make_folder: MakeFolder, folder_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, augment: str
) -> None:
    root = make_folder()
    for file in root.glob("*/*.png"):
        file.write_bytes(huge_png(23_000))

    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("its pixels would take gigabytes")

    data = open_data(folder_config(root, image_size=8, augment=augment), seed=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"too many pixels. .529000000"):
        next(iter(train_batches(data, batch=2, first=0, seed=0)))
    monkeypatch.setattr("accumtrain.data.encoded.decode", refuse)
    message = r"is 23000 x 23000 pixels, more than data.max_pixels=89478485: .* data.max_pixels=529000000"
    with pytest.raises(DataError, match=message):
        data.train.inspect_recent()


@pytest.mark.parametrize("encode", [tf.io.encode_png, tf.io.encode_jpeg])
def test_max_pixels_is_the_largest_allowed(
    make_folder: MakeFolder, folder_config: MakeConfig, encode: Callable[..., tf.Tensor]
) -> None:
    root = make_folder()
    for file in root.glob("*/*.png"):
        file.write_bytes(encode(tf.zeros([5, 7, 3], tf.uint8)).numpy())
    next(iter(train_batches(open_data(folder_config(root, max_pixels=35), seed=0), batch=8, first=0, seed=0)))
    with pytest.raises(DataError, match=r"is 7 x 5 pixels, more than data.max_pixels=34"):
        open_data(folder_config(root, max_pixels=34), seed=0)


# --- arrays -------------------------------------------------------------------------------------------------------


def member(file: Path, name: str, content: bytes, **options: int) -> None:
    with zipfile.ZipFile(file, "a", **options) as packed:
        packed.writestr(f"{name}.npy", content)


def header(shape: tuple[int, ...]) -> bytes:
    """Of a .npy file."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_arrays_larger_than_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.npz"
    np.savez_compressed(file, images=np.zeros([4000, 32, 32], np.uint8), labels=np.arange(4000) % 2)
    assert file.stat().st_size < 50_000
    monkeypatch.setattr(npz, "free_bytes", lambda: 2 * 2**20)
    with pytest.raises(DataError, match=r"images takes 3.9 MB, 2.0 MB of memory are free: save fewer images"):
        open_data(NpzConfig(path=str(file)), seed=0)


def test_an_array_that_claims_more_than_its_file_holds_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    member(file, "images", header((10**9, 64, 64)) + bytes(100))
    member(file, "labels", header((10**9,)) + bytes(100))
    with pytest.raises(DataError, match=r"mine.npz: labels can't be read .*: save it again"):
        open_data(NpzConfig(path=str(file)), seed=0)


def test_a_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    member(file, "images", b"a text and no array", compression=zipfile.ZIP_LZMA)
    with pytest.raises(DataError, match=r"mine.npz: images can't be read \(.*magic string is not correct"):
        open_data(NpzConfig(path=str(file)), seed=0)


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    member(file, "images", b"x" * 100)
    content = bytearray(file.read_bytes())
    content[6] |= 1  # the flag in the header of the member, and in the list of members
    content[content.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"mine.npz: images can't be read \(File .* is encrypted"):
        open_data(NpzConfig(path=str(file)), seed=0)


def test_an_array_file_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    os.mkfifo(file)
    with pytest.raises(DataError, match=r"data.path=.*mine.npz is no regular file"):
        open_data(NpzConfig(path=str(file)), seed=0)
