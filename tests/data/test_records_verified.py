"""TFRecord files: every record is checked against its checksums, wherever a bit is wrong."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c
import pytest
import tensorflow as tf

from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.sources.records.record_index import check_checksum_speed, read_length, read_payload
from accumtrain.errors import DataError
from tests.data.conftest import assert_refused, flip_bit, write_records


def flip(path: Path, place: int) -> None:
    """Flip a bit, and keep the time of change, so that no index notices."""
    times = path.stat()
    flip_bit(path, place)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def place_of_label(path: Path, record: int) -> int:
    """Return the place of the label in a record of `make_shards`: the last byte of its only varint list."""
    content, start = path.read_bytes(), 0
    for _ in range(record):
        start += 12 + struct.unpack_from("<Q", content, start)[0] + 4
    (length,) = struct.unpack_from("<Q", content, start)
    payload = content[start + 12 : start + 12 + length]
    return start + 12 + payload.index(b"\x1a\x03\x0a\x01") + 4


def test_a_record_of_tensorflow_is_taken_apart(tmp_path):
    write_records(tmp_path / "one", b"payload")
    record = (tmp_path / "one").read_bytes()
    assert (read_length(record[:12]), read_payload(record)) == (7, b"payload")


@pytest.mark.parametrize("place", range(12 + 7 + 4))
def test_a_flipped_bit_anywhere_is_found(tmp_path, place):
    write_records(tmp_path / "one", b"payload")
    flip_bit(tmp_path / "one", place)
    assert read_payload((tmp_path / "one").read_bytes()) is None


@pytest.mark.parametrize("resident_bytes", [0, 2**20])
def test_a_flipped_label_is_not_trained_on(shards, tfrecord_config, monkeypatch, resident_bytes):
    monkeypatch.setattr("accumtrain.data.pipeline.RESIDENT_BYTES", resident_bytes)
    open_data(tfrecord_config(), seed=0)  # makes the index
    flip(shards[2], place_of_label(shards[2], 1))
    data = open_data(tfrecord_config(), seed=0)
    message = r"record 1 of .*train-2 is damaged, its checksum is wrong"
    with pytest.raises((DataError, tf.errors.OpError)) as failure:
        list(make_train_batches(data, batch=7, first=0, seed=0).take(2))
    if resident_bytes:
        assert failure.match(message)
    with pytest.raises(DataError, match=message):
        data.train.inspect_recent()


def test_a_flipped_length_names_its_place(shards, tfrecord_config):
    flip(shards[0], 0)
    assert_refused(tfrecord_config(), r"train-0 is truncated or not a TFRecord file: record 0 at byte 0 has no valid")


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_shards_of_tfds_are_verified(prepare_tfds, file_format):
    config = prepare_tfds(file_format)
    shard = sorted(Path(config.dir).rglob("*train*-00001-of-*"))[0]
    flip(shard, shard.read_bytes().index(b"IDAT") + 8)
    data = open_data(config, seed=0)
    with pytest.raises(DataError, match=rf"record \d of .*{shard.name} is damaged"):
        list(make_eval_batches(data, batch=4, split="train"))


def test_checksums_in_python_are_refused(shards, tfrecord_config, monkeypatch):
    check_checksum_speed()
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    assert_refused(tfrecord_config(), "without its C extension; install its wheel")
