"""Generated damage of images and records: what is read is right, all else is named, and memory stays bounded."""

from __future__ import annotations

import io
import random
import resource
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from accumtrain.data import pipeline
from accumtrain.data.checking.check import CheckedClasses, scan_split
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.source import Dataset
from accumtrain.errors import DataError
from tests.data.hostile import record as as_record

MB = 2**20
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK")
FORMATS = {  # PNG of the others
    "1": ["PNG", "TIFF", "BMP"],
    "CMYK": ["JPEG", "TIFF"],
    "L": ["PNG", "JPEG", "TIFF", "GIF", "BMP"],
    "P": ["PNG", "TIFF", "GIF", "BMP"],
    "RGB": ["PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP"],
    "RGBA": ["PNG", "WEBP", "TIFF"],
}
IMAGES = 150


def encoded(draw: random.Random) -> bytes:
    """A small picture of a random mode, in a random format, half of them with EXIF data."""
    width, height = draw.randrange(1, 40), draw.randrange(1, 40)
    pixels = np.random.default_rng(draw.randrange(2**32)).integers(0, 256, [height, width, 4], np.uint8)
    mode = draw.choice(MODES)
    if mode == "I;16":
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    else:
        image = Image.fromarray(pixels).convert("RGB").convert(mode)
    exif = Image.Exif()
    exif[0x0112] = draw.randrange(1, 9)
    options = {"progressive": draw.random() < 0.5, "lossless": draw.random() < 0.5, "exif": exif}
    file = io.BytesIO()
    image.save(file, draw.choice(FORMATS.get(mode, ["PNG"])), **options if draw.random() < 0.5 else {})
    return file.getvalue()


def damaged(content: bytes, draw: random.Random) -> bytes:
    """`content` with damage of a random kind, which may even leave it as it is."""
    text, place = bytearray(content), draw.randrange(len(content))
    kind = draw.randrange(8)
    if kind == 0:
        return bytes(text[:place])
    if kind == 1:
        return bytes(text[:place] + draw.randbytes(draw.randrange(1, 50)) + text[place:])
    if kind == 2:
        return bytes(text[:place] + text[place + draw.randrange(1, 50) :])
    if kind == 3:
        return draw.randbytes(draw.randrange(200))
    if kind == 4:  # the header says any size, with a checksum that is right
        if not content.startswith(b"\x89PNG"):
            return bytes(text[:2] + draw.randbytes(len(text) - 2))
        text[16:24] = struct.pack(">II", draw.choice([0, 1, 10**5, 2**31 - 1]), draw.choice([1, 10**5, 2**32 - 1]))
        text[29:33] = struct.pack(">I", zlib.crc32(bytes(text[12:29])))
        return bytes(text)
    for _ in range(draw.choice([1, 1, 5, 50])):
        text[draw.randrange(len(text))] ^= 1 << draw.randrange(8)
    return bytes(text)


def read_all(data: Dataset) -> tuple[int, int]:
    """Read both splits as training and as job=check do. Return the numbers of good and of bad examples."""
    good = bad = 0
    for name, split in (("train", data.train), ("test", data.test)):
        statistics = scan_split(split, name, CheckedClasses(data.classes), lambda more: None)
        weights = np.concatenate([batch["weight"] for batch in make_eval_batches(data, batch=7, split=name)])
        assert all(bad.name and bad.reason for bad in statistics.bad)
        assert sum(statistics.targets.values()) + len(statistics.bad) == split.size
        decoded = [bad for bad in statistics.bad if "though it can be decoded" in bad.reason]  # job=check is stricter
        assert weights.sum() == sum(statistics.targets.values()) + len(decoded), "both read the same examples"
        good, bad = good + sum(statistics.targets.values()), bad + len(statistics.bad)
    return good, bad


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.parametrize("resident_bytes", [2**24, 0], ids=["in memory", "streamed"])
def test_images(tmp_path, folder_config, monkeypatch, resident_bytes):
    monkeypatch.setattr(pipeline, "RESIDENT_BYTES", resident_bytes)
    draw = random.Random(resident_bytes)
    for number in range(IMAGES):
        file = tmp_path / f"photos/{'ab'[number % 2]}/{number:03}.{draw.choice(['png', 'jpg'])}"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = encoded(draw)
        file.write_bytes(content if number % 10 == 0 else damaged(content, draw))
    config = folder_config(tmp_path / "photos", image_size=8, on_error="skip")
    before = peak_bytes()
    good, bad = read_all(open_data(config, seed=0))
    assert peak_bytes() - before < 256 * MB
    assert good + bad == IMAGES
    assert good >= IMAGES // 10
    assert bad >= IMAGES // 4
    with pytest.raises(DataError, match=r"photos/[ab]/\d\d\d\.(png|jpg)"):
        list(make_eval_batches(open_data(replace(config, on_error="raise"), seed=0), batch=7, split="train"))


def test_records_that_are_no_examples(make_shards, tfrecord_config):
    """Their checksums are right. A label or a feature that is not there is never skipped: the remedy is another one."""
    (train,) = make_shards("train", (150,))
    make_shards("test", (4,))
    draw = random.Random(1)
    whole = [record.numpy() for record in tf.data.TFRecordDataset(str(train))]
    records = [payload if number % 10 == 0 else damaged(payload, draw) for number, payload in enumerate(whole)]
    train.write_bytes(b"".join(map(as_record, records)))
    config = tfrecord_config(image_size=8, on_error="skip")
    before = peak_bytes()
    data = open_data(config, seed=0)
    statistics = scan_split(data.train, "train", CheckedClasses("012"), lambda more: None)
    wrong = [bad for bad in statistics.bad if bad.reason.startswith("has ")]
    assert wrong
    with pytest.raises((DataError, tf.errors.OpError), match=r"record \d+ of .*train-0 has "):
        list(make_eval_batches(data, batch=7, split="train"))
    left_out = {int(bad.name.split()[1]) for bad in wrong}
    left = [record for number, record in enumerate(records) if number not in left_out]
    train.write_bytes(b"".join(map(as_record, left)))
    good, bad = read_all(open_data(config, seed=0))
    assert peak_bytes() - before < 256 * MB
    assert good + bad == len(left) + 4
    assert good >= 15
    assert bad >= 20


@pytest.mark.slow
def test_damaged_shards(make_shards, tfrecord_config):
    """No damage of a file is ever read as another example: what is not as it was written is an error."""
    (train,) = make_shards("train", (6,))
    make_shards("test", (2,))
    whole, expected = train.read_bytes(), labels_and_images(open_data(tfrecord_config(), seed=0))
    draw = random.Random(2)
    messages = []
    for _ in range(80):
        train.write_bytes(damaged(whole, draw))
        try:
            found = labels_and_images(open_data(tfrecord_config(), seed=0))
        except DataError as error:
            messages.append(str(error))
            continue
        count = min(len(found), len(expected))  # cut between two records: shorter, and the run's fingerprint says so
        assert found[:count] == expected[:count]
    assert len(messages) >= 60
    assert all(str(train.parent) in message for message in messages)


def labels_and_images(data: Dataset) -> list[tuple[int, bytes]]:
    batches = make_eval_batches(data, batch=1, split="train")
    return [(int(batch["targets"][0]), batch["inputs"].numpy().tobytes()) for batch in batches]
