"""Files that are made to break what reads them, by name. Each is to be refused in words, but for those in READ."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from accumtrain.data.sources.records.record_index import _checksum
from tests.data.conftest import example, picture

SIDE = 14_000  # pixels, more than data.max_pixels allows for both sides
BRACKETS = 9_000


def saved(kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture(7, 16, 16)).save(stream, kind, **options)
    return stream.getvalue()


def cuts(content: bytes) -> dict[str, bytes]:
    """The beginning of a file, up to various places."""
    ends = {"1 byte": 1, "signature": 10, "header": 24, "half": len(content) // 2}
    return {f"cut after {name}": content[:end] for name, end in ends.items()}


def replaced(content: bytes, at: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + len(new) :]


# ---- images ----


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, depth: int = 8, colour: int = 2, *more: bytes, data: bytes | None = None) -> bytes:
    pixels = zlib.compress((b"\0" + bytes(3 * 16)) * 16) if data is None else data
    return b"".join([
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)),
        *more,
        chunk(b"IDAT", pixels),
        chunk(b"IEND", b""),
    ])  # fmt: skip


def webp(kind: bytes, content: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


def canvas(width: int, height: int, flags: int = 0) -> bytes:
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", bytes([flags, 0, 0, 0]) + sizes)


def jpeg_of_size(height: int, width: int) -> bytes:
    content = saved("JPEG")
    return replaced(content, content.index(b"\xff\xc0") + 5, struct.pack(">HH", height, width))


def with_exif(content: bytes) -> bytes:
    """A JPEG with a segment of EXIF data."""
    segment = b"Exif\0\0" + content
    whole = saved("JPEG")
    return whole[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + whole[2:]


LOOP = b"II*\0\x08\0\0\0\x01\0\x69\x87\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"  # a directory that holds itself
BOMB = zlib.compress(bytes(2**26))
BMP, GIF, TIFF = saved("BMP"), saved("GIF"), saved("TIFF")
FRAME = 13 + 3 * 2 ** (GIF[10] % 8 + 1)  # of the GIF: where its frame begins, after its palette


def tiff(width: int, height: int) -> bytes:
    """A TIFF whose first two values, width and height, are these."""
    return TIFF[:18] + struct.pack("<I", width) + TIFF[22:30] + struct.pack("<I", height) + TIFF[34:]


IMAGES: dict[str, dict[str, bytes]] = {
    "png": {
        **cuts(saved("PNG")),
        "huge": png(SIDE, SIDE),
        "largest": png(2**31 - 1, 2**31 - 1),
        "beyond the largest": png(2**32 - 1, 2**32 - 1),
        "no width": png(0, 16),
        "3 bits": png(16, 16, 3),
        "colour type 5": png(16, 16, 8, 5),
        "palette without colours": png(16, 16, 8, 3),
        "no pixels": png(16, 16, data=zlib.compress(b"")),
        "no zlib": png(16, 16, data=b"\xff" * 40),
        "a wrong checksum": replaced(png(16, 16), 29, b"\0\0\0\0"),
        "text of 64 MB": png(16, 16, 8, 2, chunk(b"tRNS", bytes(6)), chunk(b"zTXt", b"a\0\0" + BOMB)),
        "a profile of 64 MB": png(16, 16, 8, 2, chunk(b"tRNS", bytes(6)), chunk(b"iCCP", b"a\0\0" + BOMB)),
        "EXIF of itself": png(16, 16, 8, 2, chunk(b"eXIf", LOOP)),
        "EXIF of nothing": png(16, 16, 8, 2, chunk(b"eXIf", b"")),
        "a chunk of 4 GB": png(16, 16)[:33] + b"\xff\xff\xff\xffIDAT",
    },
    "jpg": {
        **cuts(saved("JPEG")),
        "largest": jpeg_of_size(65_535, 65_535),
        "no height": jpeg_of_size(0, 16),
        "no pixels": saved("JPEG").split(b"\xff\xda")[0] + b"\xff\xd9",
        "a segment of no length": b"\xff\xd8\xff\xe0\0\0" + bytes(100),
        "only markers": b"\xff\xd8" + b"\xff\xe0\0\x02" * 2_000,
        "EXIF of itself": with_exif(LOOP),
        "EXIF beyond its end": with_exif(b"MM\0*\xff\xff\xff\xf0"),
        "EXIF of 60,000 bytes": with_exif(b"II*\0\x08\0\0\0\xff\xff" + b"\xff" * 60_000),
    },
    "webp": {
        **cuts(saved("WEBP", lossless=True)),
        "huge": canvas(SIDE, SIDE),
        "largest": canvas(2**24, 2**24),
        "animated": saved("WEBP", save_all=True, append_images=[Image.new("RGB", (16, 16))]),
        "an animation without frames": canvas(16, 16, flags=2),
        "huge and lossless": webp(b"VP8L", b"\x2f" + ((SIDE - 1) | (SIDE - 1) << 14).to_bytes(4, "little") + bytes(30)),
        "huge and lossy": webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", SIDE, SIDE) + bytes(30)),
        "no image": webp(b"VP8X", bytes(10)) + bytes(20),
        "another RIFF": b"RIFF" + struct.pack("<I", 60) + b"WAVEfmt " + bytes(60),
    },
    "bmp": {
        **cuts(BMP),
        "huge": replaced(BMP, 18, struct.pack("<ii", SIDE, SIDE)),
        "largest": replaced(BMP, 18, struct.pack("<ii", 2**31 - 1, -(2**31))),
        "no width": replaced(BMP, 18, struct.pack("<ii", 0, 16)),
        "a negative width": replaced(BMP, 18, struct.pack("<ii", -16, 16)),
        "13 bits": replaced(BMP, 28, struct.pack("<H", 13)),
        "compressed": replaced(BMP, 30, struct.pack("<I", 1)),
        "pixels beyond its end": replaced(BMP, 10, struct.pack("<I", 2**31)),
        "a header of 4 GB": replaced(BMP, 14, struct.pack("<I", 2**32 - 1)),
    },
    "gif": {
        **cuts(GIF),
        "huge": replaced(GIF, 6, struct.pack("<HH", 65_535, 65_535)),
        "a frame beyond its canvas": replaced(GIF, FRAME + 5, struct.pack("<HH", 65_535, 65_535)),
        "animated": saved("GIF", save_all=True, append_images=[Image.new("RGB", (16, 16))]),
        "no pixels": GIF[: FRAME + 10] + b"\x08\0;",
        "codes of 200 bits": replaced(GIF, FRAME + 10, b"\xc8"),
    },
    "tif": {
        **cuts(TIFF),
        "a directory that holds itself": LOOP,
        "a directory that comes after itself": replaced(TIFF, 10 + 12 * TIFF[8], struct.pack("<I", 8)),
        "pages": saved("TIFF", save_all=True, append_images=[Image.new("RGB", (16, 16))]),
        "huge": tiff(SIDE, SIDE),
        "largest": tiff(2**32 - 1, 2**32 - 1),
        "no width": tiff(0, 16),
        "65,535 values": TIFF[:8] + b"\xff\xff" + TIFF[10:],
        "a directory beyond its end": TIFF[:4] + b"\xff\xff\xff\x7f" + TIFF[8:],
    },
}  # fmt: skip
OTHER_IMAGES = {
    "an AVIF.png": bytes(4) + b"ftypavif" + bytes(40),
}
READ = {  # whole pictures, with something odd beside them
    *("text of 64 MB.png", "a profile of 64 MB.png", "EXIF of itself.png", "EXIF of nothing.png"),
    "a directory that comes after itself.tif",
    *("EXIF of itself.jpg", "EXIF beyond its end.jpg", "EXIF of 60,000 bytes.jpg"),
}


def write_images(folder: Path) -> list[str]:
    """The names of the files that are written."""
    named = {f"{name}.{suffix}": content for suffix, found in IMAGES.items() for name, content in found.items()}
    for name, content in {**named, **OTHER_IMAGES}.items():
        (folder / name).write_bytes(content)
    return [*named, *OTHER_IMAGES]


# ---- arrays ----


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    length = struct.pack("<H", len(text)) if version == b"\x01\x00" else struct.pack("<I", len(text))
    return b"\x93NUMPY" + version + length + text + content


def described(shape: str, dtype: str = "'|u1'") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}"


def array(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


PIXELS = array(np.stack([picture(number) for number in range(6)]))
LABELS = array(np.arange(6) % 2)
HEADERS = {
    f"{BRACKETS} brackets": "[" * BRACKETS,
    "900 brackets": "[" * 900,
    "brackets that close": "{'descr': " + "(" * 90 + ")" * 90 + "}",
    "a minus for each bracket": "-" * 900 + "1",
    "a text without end": "{'descr': '",
    "no dictionary": "3",
    "a call": "__import__('os').abort()",
    "a key too many": described("(6,)")[:-1] + ", 'x': 1}",
    "a shape of texts": described("('a', 'b')"),
    "a negative shape": described("(-6, 6, 6, 3)"),
    "a huge shape": described(f"({2**40}, {2**40}, {2**40}, 3)"),
    "a shape beyond 64 bits": described(f"({10**30}, 6, 6, 3)"),
    "no dtype": described("(6, 6, 6, 3)", "'nonsense'"),
    "a dtype of 2 GB": described("(6, 6, 6, 3)", "'V2147483647'"),
    "a dtype of lists": described("(6, 6, 6, 3)", "[[[]]]"),
    "dates": described("(6, 6, 6, 3)", "'<M8[s]'"),
    "complex numbers": described("(6, 6, 6, 3)", "'<c8'"),
    "objects": described("(6, 6, 6, 3)", "'|O'"),
    "a null": "\0" * 40,
}


def pack(images: bytes, labels: bytes = LABELS) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with zipfile.ZipFile(file, "w") as packed:
            packed.writestr("images.npy", images)
            packed.writestr("labels.npy", labels)

    return write


def changed(at: int, new: bytes) -> Callable[[Path], None]:
    """Write a whole file, then change bytes of its directory, counted from its beginning."""

    def write(file: Path) -> None:
        pack(PIXELS)(file)
        content = file.read_bytes()
        file.write_bytes(replaced(content, content.index(b"PK\x01\x02") + at, new))

    return write


NPZ: dict[str, Callable[[Path], None]] = {
    **{f"header of {name}": pack(npy(header, bytes(648))) for name, header in HEADERS.items()},
    "format 3": pack(npy(described("(6, 6, 6, 3)"), bytes(648), b"\x03\x00")),
    "format 9": pack(npy(described("(6, 6, 6, 3)"), bytes(648), b"\x09\x09")),
    "a header of 4 GB": pack(b"\x93NUMPY\x02\x00\xff\xff\xff\xff"),
    "no header": pack(b"\x93NUMP"),
    "nothing": pack(b""),
    "a text": pack(b"a text and no array"),
    "more than there is": pack(npy(described("(1000000000, 64, 64)")), npy(described("(1000000000,)"))),
    "half of the pixels": pack(PIXELS[: len(PIXELS) // 2]),
    "labels without number": pack(PIXELS, array(np.full(6, np.nan))),
    "infinite labels": pack(PIXELS, array(np.array([0, 1, np.inf, 0, 1, 0]))),
    "the largest label": pack(PIXELS, array(np.full(6, 2**64 - 1, np.uint64))),
    "no labels": pack(PIXELS, array(np.zeros(0, int))),
    "labels without columns": pack(PIXELS, array(np.zeros([6, 0]))),
    "a single label": pack(PIXELS, array(np.int64(3))),
    "another method": changed(10, b"\x63\0"),
    "encrypted": changed(8, b"\1\0"),
    "a wrong checksum": changed(16, b"\0\0\0\0"),
    "fewer bytes than there are": changed(24, b"\xc8\0\0\0"),
    "another place": changed(42, b"\xff\xff\xff\x7f"),
}  # fmt: skip


# ---- records ----


def record(payload: bytes, length: int | None = None) -> bytes:
    size = struct.pack("<Q", len(payload) if length is None else length)
    return b"".join([size, _checksum(size).to_bytes(4, "little"), payload, _checksum(payload).to_bytes(4, "little")])


def of(**features: Any) -> bytes:
    return record(example({"image": saved("PNG"), "label": 1, **features}))


RECORDS: dict[str, bytes] = {
    "8 bytes": bytes(8),
    "zeros": bytes(400),
    "a length beyond the file": record(b"x" * 20, length=2**40),
    "a length beyond 63 bits": record(b"x" * 20, length=2**64 - 1),
    "no payload": record(b""),
    "no example": record(b"\xff" * 64),
    "a nest of messages": record(b"\x0a\x80\x01" * 2_000),
    "a wrong checksum": of()[:-1] + b"\0",
    "no image": of(image=b""),
    "an image of numbers": of(image=7),
    "two images": of(image=[saved("PNG")] * 2),
    "a huge WebP": of(image=canvas(SIDE, SIDE)),
    "a huge PNG": of(image=png(SIDE, SIDE)),
    "an animated GIF": of(image=saved("GIF", save_all=True, append_images=[Image.new("RGB", (16, 16))])),
    "half an image": of(image=saved("PNG")[:60]),
    "the largest label": of(label=2**63 - 1),
    "the smallest label": of(label=-(2**63)),
    "a million labels": of(label=[1] * 10**6),
    "no number": of(label=float("nan")),
    "an infinite label": of(label=float("inf")),
    "a label of bytes": of(label=b"\xff\xfe"),
    "a label of nulls": of(label=bytes(9)),
}
COUNT = sum(map(len, IMAGES.values())) + len(OTHER_IMAGES) + len(NPZ) + len(RECORDS)
