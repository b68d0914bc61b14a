"""The first bytes of an image file: its faults, its orientation, and what decoding loses of it.

Files are looked at once, by Pillow, when they are listed. Their pixels are decoded while training (decode.py).
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL.Image import DecompressionBombError, Exif
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2, TiffImageFile

from accumtrain.data.images.by_pillow import SEVERAL, is_by_pillow, open_image
from accumtrain.data.images.decode import JPEG, PNG
from accumtrain.data.local_files import find_file_fault

FORMATS = "PNG, JPEG, WebP, TIFF, GIF or BMP"
UPRIGHT = 1  # EXIF orientation
_HEAD = 4096  # bytes
_AT_ONCE = 4096  # files, as each that waits takes memory
_HEIF = b"ftyp"  # from byte 4 on: also of AVIF and of films
_ORIENTATION = 0x0112  # tag of EXIF
_DEPTH, _COLOUR = slice(24, 25), slice(25, 26)  # bytes of a PNG: bits of a channel; 4 and 6 have transparency
_START, _SCAN = b"\xff\xd8", b"\xff\xda"  # markers of a JPEG: its beginning, and that of its pixels
# Pillow raises these for a damaged one, or for one of more pixels than it likes
_NO_HEADER = (OSError, SyntaxError, ValueError, EOFError, struct.error, DecompressionBombError)


@dataclass(frozen=True)
class Header:
    """The header of an image.

    Attributes:
        fault: what keeps it from being read, to stand after its name.
        orientation: the one to turn from once it is decoded.
        loss: what decoding loses of it.
        is_turned: it is not stored upright.
    """

    fault: str | None = None
    orientation: int = UPRIGHT
    loss: str | None = None
    is_turned: bool = False


def read_unusual_headers(files: Sequence[Path]) -> dict[Path, Header]:
    """Return the headers of the files that can't be read, are not upright, or lose something."""
    unusual: dict[Path, Header] = {}
    with warnings.catch_warnings(), ThreadPoolExecutor(16) as pool:
        warnings.simplefilter("ignore")  # Pillow's, about headers
        for first in range(0, len(files), _AT_ONCE):
            some = [files[index] for index in range(first, min(first + _AT_ONCE, len(files)))]
            headers = zip(some, pool.map(_read_header, some), strict=True)
            unusual.update((file, header) for file, header in headers if header != Header())
    return unusual


def read_header(image: bytes) -> Header:
    """Return the header of an encoded image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _examine(io.BytesIO(image))


def find_image_fault(image: bytes) -> str | None:
    """Return what keeps an encoded image from being read, to stand after its name, or None."""
    return read_header(image).fault


def _read_header(file: Path) -> Header:
    if fault := find_file_fault(file):
        return Header(fault)
    try:
        with file.open("rb") as stream:
            return _examine(stream)
    except OSError as error:
        return Header(f"can't be read: {error.strerror}")


def _examine(stream: BinaryIO) -> Header:
    head = stream.read(_HEAD)
    if head.startswith((PNG, JPEG)):
        return _parse_header(stream, head) if _may_be_unusual(head) else Header()
    if not is_by_pillow(head):
        is_heif = head[4:8] == _HEIF
        return Header(f"is an HEIC, AVIF or video, not a {FORMATS}" if is_heif else f"has no {FORMATS} inside")
    stream.seek(0)
    try:
        return _describe(open_image(stream, head))
    except ValueError as error:
        return Header(str(error))


def _may_be_unusual(head: bytes) -> bool:
    """Return whether to parse the header, which takes ten times as long: also if it goes on after `head`."""
    if head.startswith(PNG):
        has_chunk = any(name in head for name in (b"eXIf", b"tRNS", b"acTL")) or b"IDAT" not in head
        return has_chunk or head[_DEPTH] > b"\x08" or head[_COLOUR] in (b"\x04", b"\x06")
    return not head.startswith(JPEG) or b"Exif" in head or b"Adobe" in head or not _reaches_scan(head)


def _reaches_scan(head: bytes) -> bool:
    """Return whether `head` holds all segments before the pixels of a JPEG: each is a marker, and a length after it."""
    at = len(_START)
    while at + 4 <= len(head) and head[at : at + 2] != _SCAN:
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return head[at : at + 2] == _SCAN


def _parse_header(stream: BinaryIO, head: bytes) -> Header:
    stream.seek(0)
    try:
        return _describe(PngImageFile(stream) if head.startswith(PNG) else JpegImageFile(stream))
    except _NO_HEADER:
        return Header()  # the decoder finds the damage


def _describe(image: ImageFile) -> Header:
    if isinstance(image, PngImageFile) and image.is_animated:
        return Header(SEVERAL.format("PNG"))
    orientation, is_tiff = _read_orientation(image), isinstance(image, TiffImageFile)
    to_turn = UPRIGHT if is_tiff else orientation  # Pillow sets a TIFF upright itself
    return Header(None, to_turn, _find_loss(image), orientation != UPRIGHT)


def _read_orientation(image: ImageFile) -> int:
    """Return the orientation in which an image is stored."""
    tags: Exif | ImageFileDirectory_v2 = Exif()
    if isinstance(image, TiffImageFile):
        tags = image.tag_v2
    else:
        tags.load(image.info.get("exif", b""))
    orientation = tags.get(_ORIENTATION)
    return orientation if type(orientation) is int and 1 <= orientation <= 8 else UPRIGHT


def _find_loss(image: ImageFile) -> str | None:
    if image.mode == "CMYK":
        return "CMYK, turned into RGB without its colour profile"
    if image.format == "PNG" and any("16" in str(tile.args) for tile in image.tile):
        return "16 bits a channel, of which the upper 8 are read"
    return "transparency, which is ignored" if image.has_transparency_data else None
