"""What a run's model takes and tells: the shape of its images, and the names of its classes. No TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accumtrain.errors import CheckpointError
from accumtrain.runs.files import read_json, write_json

IMAGES = "images.json"  # in the run's folder
REMEDY = "run its training command again, which writes it anew"


@dataclass(frozen=True)
class Images:
    """`shape`: height, width and channels. `class_names`: a name for each class, its number if it has none."""

    shape: tuple[int, ...]
    class_names: list[str]


def write_images(folder: Path, images: Images) -> None:
    """Writes images.json into the folder of a run."""
    write_json(folder / IMAGES, {"shape": list(images.shape), "class_names": images.class_names})


def read_images(folder: Path) -> Images | None:
    """The images that a run was trained on; None if the file is gone, or if the run was given its examples.

    Raises:
        CheckpointError: the file is damaged.
    """
    file = folder / IMAGES
    if not file.exists():
        return None
    content = read_json(file)
    shape, names = content.get("shape", []), content.get("class_names", [])
    if not (_all(int, shape) and len(shape) == 3 and min(shape) > 0 and _all(str, names) and len(names) > 1):
        raise CheckpointError(f"{file} is damaged: it holds no shape and class names; {REMEDY}")
    return Images(tuple(shape), names)


def _all(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(type(each) is kind for each in values)
