"""Files of the user: those that predict.input names, and what keeps a file from being read."""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError, DataError
from accumtrain.train.config import check_tells_classes

# What keeps a file of the user from being read, found without opening it.


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp")  # of the files in a folder that count as images


def fault_of(file: Path) -> str | None:
    """What is wrong with a file, to be read after its name; None if it can be opened. Reading a FIFO would hang."""
    try:
        found = file.stat()
    except ValueError:  # the \0 in it ends a name for the system
        return "has no name that a file can have"
    except OSError as error:
        return "is a link to a file that is not there" if file.is_symlink() else f"can't be read: {error.strerror}"
    if stat.S_ISDIR(found.st_mode):
        return "is a directory"
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    return None if found.st_size else "is empty"


def size_of_file(file: Path) -> int:
    """In bytes; -1 for a file that is not there."""
    try:
        return os.stat(file).st_size  # noqa: PTH116 - half as long as Path.stat, of millions of files
    except (OSError, ValueError):
        return -1


def check_name(path: Path) -> None:
    """Raises DataError for a name that TensorFlow can't take."""
    encoded = os.fsencode(path)
    shown = encoded.decode(errors="backslashreplace")
    if encoded != shown.encode():
        raise DataError(f"{shown}: its name is not UTF-8: rename it")


# The files that predict.input names.


CSV, JSONL = ".csv", ".jsonl"


# The images that predict.input names: a file, all in a folder and the folders in it, or those of a glob.


@dataclass
class NamedImages:
    """The files in the order of their names, and what lies between them and is not named as an image."""

    files: list[Path] = field(default_factory=list)
    ignored: list[Path] = field(default_factory=list)


def check_predict(config: Config) -> None:
    """Raises ConfigError for a mistake in the keys of job=predict, and DataError if predict.input is not there."""
    check_tells_classes(config.loss.kind, config.job)
    if config.predict.input is None:
        raise ConfigError("predict.input=null: say which images, predict.input=<file, folder or glob>")
    _places(config.predict.input)
    output = Path(config.predict.output or "")
    if output.suffix not in ("", CSV, JSONL) and not output.is_dir():
        raise ConfigError(f"predict.output={output}: ends in neither {CSV} nor {JSONL}; name such a file, or a folder")


def named_images(text: str) -> NamedImages:
    """The images that `text` names, each once. A file that is named itself, or by a glob, may have any name.

    Raises:
        DataError: there is none, a folder can't be read, or a name is not UTF-8.
    """
    named = NamedImages()
    for place in _places(text):
        if place.is_dir():
            _add_folder(named, place)
        else:
            named.files.append(place)
    named.files, named.ignored = ([*dict.fromkeys(found)] for found in (named.files, named.ignored))
    if not named.files:
        endings = ", ".join(IMAGE_SUFFIXES)
        raise DataError(f"predict.input={text}: holds no image; save some as files whose names end in {endings}")
    for file in named.files:
        check_name(file)
    return named


def _places(text: str) -> list[Path]:
    place = Path(text)
    if os.path.lexists(place):
        return [place]
    found = [Path(each) for each in sorted(glob.glob(str(place), recursive=True))]  # noqa: PTH207
    if not found:
        raise DataError(f"predict.input={text}: no such file or folder; give an image, a folder or a glob in quotes")
    return found


def _add_folder(named: NamedImages, folder: Path) -> None:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename} can't be read: {error.strerror}; give yourself the permission") from error

    for inside, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            file = Path(inside, name)
            (named.files if file.suffix.lower() in IMAGE_SUFFIXES else named.ignored).append(file)
