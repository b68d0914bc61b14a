"""Pictures that are nearly masks: of few bits, turned, inexact, of unclear meaning."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from accumtrain.data.masks.config import MaskKeys
from accumtrain.data.masks.values import BadMask, choose_values, count_values, read_mask
from accumtrain.errors import DataError
from tests.data.masks.conftest import MASK, encode


def with_mode(mode, values):
    image = Image.new(mode, (values.shape[1], values.shape[0]))
    image.putdata(values.ravel().tolist())
    return image


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_png_of_few_bits_holds_its_own_numbers(bits):
    values = MASK % min(2**bits, 200)
    np.testing.assert_array_equal(read_mask(png_of_bits(values, bits)), values)


def png_of_bits(values, bits):
    """A grey PNG of few bits a pixel, of which Pillow writes none."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b""
    for row in values:
        text = "".join(format(value, f"0{bits}b") for value in row.tolist())
        text += "0" * (-len(text) % 8)
        rows += b"\0" + int(text, 2).to_bytes(len(text) // 8, "big")
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_a_mask_is_turned_by_an_orientation_of_its_own():
    exif = Image.Exif()
    exif[0x0112] = 6
    np.testing.assert_array_equal(read_mask(encode(MASK, exif=exif)), np.rot90(MASK, -1))
    np.testing.assert_array_equal(read_mask(encode(MASK, "TIFF", tiffinfo={0x0112: 6})), np.rot90(MASK, -1))


DEEP = np.array([[[0, 1, 257]]], np.uint16)


def png_of_deep_colours():
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(b"\0" + DEEP.astype(">u2").tobytes()), b"IEND": b""}
    parts = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (lambda: encode(MASK, "JPEG"), "JPEG"),
        (lambda: encode(Image.fromarray(MASK).convert("RGB"), "TIFF", compression="jpeg"), "JPEG"),
        (lambda: encode(Image.fromarray(MASK).convert("RGB"), "WEBP"), "WEBP"),
        (lambda: encode(with_mode("F", MASK), "TIFF"), "mode F"),
        (lambda: encode(Image.fromarray(MASK).convert("CMYK"), "TIFF"), "mode CMYK"),
        (lambda: encode(MASK, "GIF", save_all=True, append_images=[Image.fromarray(MASK + 1)]), "2 pictures"),
        (png_of_deep_colours, "16 bits"),
        (lambda: encode(MASK)[:-30], "can't be read"),
        (lambda: b"", "can't be read"),
        (lambda: b"class,0", "can't be read"),
    ],
)
def test_masks_without_exact_values_are_refused(content, fault):
    with pytest.raises(BadMask, match=fault):
        read_mask(content())


# ---- the classes of values


def choose(values, **keys):
    config = MaskKeys(**keys)
    config.check()
    return choose_values(config, count_values(np.asarray(values)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 7, 23, 23], r"23 \(2 pixels\).*'data\.mask_classes={class0:0,class1:7,class2:23}'"),
        ([0, 1, 2, 255], r"data\.ignore=255"),
        ([1, 2], r"'data\.mask_classes={class0:1,class1:2}'"),
        ([0, 0], "takes two classes"),
        ([255], "takes two classes"),
    ],
)
def test_values_of_unclear_meaning_are_refused_with_a_remedy(values, message):
    with pytest.raises(DataError, match=message):
        choose(values)


def test_the_remedy_names_all_values_so_that_it_can_be_followed():
    values = [3 * number for number in range(30)]
    with pytest.raises(DataError) as refused:
        choose(values)
    assert "..." not in str(refused.value).partition("mask_classes=")[2]
    assert "class29:87" in str(refused.value)


def test_many_values_are_no_classes():
    with pytest.raises(DataError, match="numbers of objects"):
        choose(np.arange(0, 3000, 2))
