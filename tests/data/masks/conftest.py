"""Tiny images with masks, made with Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accumtrain.data.config import FolderConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.source import Dataset
from accumtrain.fields import MASKS

MASK = np.array([[0, 1, 2], [0, 0, 1]], np.uint8)


def encode(mask: np.ndarray | Image.Image, kind: str = "PNG", **given: Any) -> bytes:
    """An array, or a picture, as a file."""
    stream = io.BytesIO()
    (mask if isinstance(mask, Image.Image) else Image.fromarray(mask)).save(stream, kind, **given)
    return stream.getvalue()


def photo(height: int = 2, width: int = 3, **given: Any) -> bytes:
    pixels = np.random.default_rng(height * 100 + width).integers(0, 256, [height, width, 3], np.uint8)
    return encode(pixels, **given)


def write(root: Path, files: Mapping[str, bytes | np.ndarray]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else encode(content))
    return root


def in_two_folders(*masks: bytes | np.ndarray, suffix: str = ".png") -> dict[str, bytes | np.ndarray]:
    """Files of images/ and masks/, the images as large as the masks of 2 x 3 pixels."""
    names = [f"{number:02}" for number in range(len(masks))]
    return {f"images/{name}.png": photo() for name in names} | {
        f"masks/{name}{suffix}": mask for name, mask in zip(names, masks, strict=True)
    }


@pytest.fixture
def open_files(tmp_path: Path) -> Callable[..., Dataset]:
    """Write files, and open their folder."""

    def opened(files: Mapping[str, bytes | np.ndarray], **keys: Any) -> Dataset:
        write(tmp_path, files)
        config = FolderConfig(path=str(tmp_path), **{"val_fraction": 0.0, **keys})
        config.check()
        return open_data(config, 0, MASKS)

    return opened
