"""Image files without labels, prepared as a run's test images are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from accumtrain.data.image_folder import FolderSplit, notes_of
from accumtrain.data.image_header import unusual_headers
from accumtrain.data.preprocess import Preprocess, make_preprocess
from accumtrain.data.source import Data
from accumtrain.kinds.sources import DataConfig, FolderConfig
from accumtrain.runs.trained_on import Images

WHITE = 255  # of the pixels of a file


def open_files(files: Sequence[Path], config: DataConfig, images: Images) -> Data:
    """The files as the test images of a data set; the label of each is its place in `files`.

    Those that can't be read or decoded are left out, and named in `skipped`.

    Args:
        config: the data keys of the run.
        images: what the run was trained on.
    """
    keys = FolderConfig(path="", max_pixels=config.max_pixels, on_error="skip")
    unusual = unusual_headers(files)
    split = FolderSplit(files, list(range(len(files))), unusual, keys)
    split.channels = images.shape[-1]
    return Data(
        train=split,
        test=split,
        num_classes=len(images.class_names),
        image_shape=images.shape,
        preprocess=preprocess_any_size(config, images),
        class_names=images.class_names,
        notes=notes_of(unusual),
    )


def preprocess_any_size(config: DataConfig, images: Images) -> Preprocess:
    """The preprocessing of the run, for pixels 0..255 in images of any size."""
    height, width, channels = images.shape
    return replace(make_preprocess(config, channels=channels, white=WHITE), image_size=(height, width))
