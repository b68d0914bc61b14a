"""WebP, TIFF, GIF and BMP, which Pillow decodes: a single picture of 8 bits a channel. Others are refused in words.

So is a PNG of several images, of which TensorFlow would decode the first.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import MAX_IMAGE_PIXELS, DecompressionBombError
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile


class _Kind(NamedTuple):
    name: str
    open: Callable[[BinaryIO], ImageFile]


_TIFF = _Kind("TIFF", TiffImageFile)
_KINDS = {  # by the beginnings of files
    b"RIFF": _Kind("WebP", WebPImageFile),
    b"GIF8": _Kind("GIF", GifImageFile),
    b"BM": _Kind("BMP", BmpImageFile),
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _TIFF),
}
# Modes of Pillow with 8 bits a channel or less, of which it says how they look in RGB.
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}
_BITS = 258  # tag of a TIFF: bits of each channel
_MOST_PIXELS = 2 * (MAX_IMAGE_PIXELS or 0)  # that Pillow decodes; twice the default of data.max_pixels
SEVERAL = "is a {} of several images, not a single one"
_TOO_LARGE = f"has more than {_MOST_PIXELS:,} pixels, the most of its kind whatever data.max_pixels is"


def is_by_pillow(image: bytes) -> bool:
    """Return whether this is the beginning of an image that Pillow decodes."""
    return image.startswith(tuple(_KINDS))


def open_image(stream: BinaryIO, beginning: bytes) -> ImageFile:
    """Return an image that `is_by_pillow`, of which no pixel is decoded.

    Raises:
        ValueError: What keeps it from being read, to stand after its name.
    """
    kind = next(kind for begins, kind in _KINDS.items() if beginning.startswith(begins))
    try:
        image = kind.open(stream)
        several = getattr(image, "is_animated", False)
        bits = image.tag_v2.get(_BITS, (1,)) if isinstance(image, TiffImageFile) else (1,)
    except DecompressionBombError as error:
        raise ValueError(_TOO_LARGE) from error
    except Exception as error:  # Pillow raises errors of many kinds for a damaged one
        raise ValueError(f"is a damaged {kind.name}, or of a kind that can't be read") from error
    if image.width * image.height > _MOST_PIXELS:
        raise ValueError(_TOO_LARGE)
    if several:
        raise ValueError(SEVERAL.format(kind.name))
    if image.mode not in _MODES or max(bits) > 8:
        raise ValueError(
            f"is a {kind.name} of more than 8 bits a channel, or of uncommon colours ({image.mode}), so which of its "
            "values is white would be a guess"
        )
    return image


def read_size(image: bytes | np.ndarray) -> np.ndarray:
    """Return height and width, int32 [2], of an encoded image. Raise ValueError for what can't be read."""
    return np.array(_open(image).size[::-1], np.int32)


def check_single(png: bytes | np.ndarray) -> np.ndarray:
    """Return True, bool []. Raise ValueError for a PNG of several images."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the number of images
            several = PngImageFile(io.BytesIO(_content(png))).is_animated
    except Exception:  # the decoder finds the damage
        several = False
    if several:
        raise ValueError(SEVERAL.format("PNG"))
    return np.array(True)


def decode(image: bytes | np.ndarray) -> np.ndarray:
    """Return the pixels, uint8 [height, width, 3], a TIFF's upright. Raise ValueError for what can't be read."""
    opened = _open(image)
    try:
        return np.asarray(opened.convert("RGB"))
    except DecompressionBombError as error:
        raise ValueError(_TOO_LARGE) from error
    except Exception as error:
        raise ValueError(f"can't be decoded: {error}") from error


def _open(image: bytes | np.ndarray) -> ImageFile:
    content = _content(image)
    if not is_by_pillow(content):
        raise ValueError("is no image of a known kind")
    return open_image(io.BytesIO(content), content)


def _content(image: bytes | np.ndarray) -> bytes:
    content: bytes = np.asarray(image, object).item()  # TensorFlow gives a string [] outside of graphs
    return content
