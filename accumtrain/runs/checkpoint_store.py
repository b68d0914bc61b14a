"""The checkpoints of a run as folders: each is whole or absent, and the newest whole one is found by listing.

A checkpoint is written into a hidden folder, synced, and made visible by one rename. Its manifest.json holds the size
and the checksum of every file. What fails this check is moved to quarantine/, never deleted. No TensorFlow here.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from accumtrain.errors import CheckpointError
from accumtrain.runs.files import disk_errors, open_regular, sync, write_json
from accumtrain.runs.folder import QUARANTINE
from accumtrain.version import __version__

MANIFEST, PREFIX, REASON = "manifest.json", "state", "reason.txt"
UNFINISHED = ".unfinished-"
FORMAT = 1
CHUNK = 2**20  # bytes read at once
# errors of reading that lie in the file: it is not there, is no file, or its place on the disk is bad
OF_THE_FILE = (errno.ENOENT, errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.EIO)
FOLDER = re.compile(r"step-(\d+)")
EARLIER = re.compile(r"step-(\d+)\.index")  # a checkpoint of earlier versions: files without a manifest


class DamagedError(Exception):
    """The files of a checkpoint are not those that were written. The message says what is wrong."""


class ChangedError(CheckpointError):
    """Another process has deleted or moved a checkpoint, as a training does when it has a better one."""

    def __init__(self, saved: Saved):
        super().__init__(f"checkpoint {saved.path} changed while it was read: run the same command again")


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk.

    Attributes:
        step: number of updates done.
        path: its folder, or for earlier versions the common prefix of its files.
    """

    step: int
    path: Path

    @property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @property
    def exists(self) -> bool:
        return self.is_folder or self.index.exists()

    @property
    def written(self) -> float:
        """When it was written, in seconds since the epoch."""
        try:
            return float(self._manifest()["written"]) if self.is_folder else self.index.stat().st_mtime
        except (DamagedError, KeyError, TypeError, ValueError):
            return self.path.stat().st_mtime

    @property
    def index(self) -> Path:
        """The index file of a checkpoint of earlier versions."""
        return self.path.with_name(f"{self.path.name}.index")

    @property
    def prefix(self) -> str:
        """What TensorFlow calls the checkpoint: the common prefix of its files."""
        return str(self.path / PREFIX if self.is_folder else self.path)

    def check(self) -> dict[str, Any]:
        """Compares every file with the manifest. Returns the manifest, {} for a checkpoint of earlier versions.

        Raises:
            DamagedError: a file is missing or has another content, or the manifest belongs to another update.
            CheckpointError: a file can't be read now, or is of a newer version. It may be whole.
        """
        if not self.is_folder:
            if odd := [file.name for file in _files_of(self) if not file.is_file()]:
                raise DamagedError(f"{odd[0]} is no regular file")
            return {}
        manifest = self._manifest()
        if manifest["step"] != self.step:
            raise DamagedError(f"{MANIFEST} is that of update {manifest['step']}")
        for name, expected in manifest["files"].items():
            try:
                found = _fingerprint(self.path / name)
            except OSError as error:
                raise _unreadable(self.path / name, error) from error
            if found != expected:
                raise DamagedError(f"{name} is not the file that was written ({_difference(found, expected)})")
        return manifest

    def _manifest(self) -> dict[str, Any]:
        try:
            with _opened(self.path / MANIFEST) as content:
                manifest: dict[str, Any] = json.load(content)
            files = manifest["files"].items()
            other_version = manifest["versions"]["accumtrain"] != __version__
            if manifest["format"] > FORMAT and other_version:  # both, as a flipped bit changes only one
                raise CheckpointError(f"{self.path} was written by a newer version of accumtrain: install that")
            if not files or not isinstance(manifest["step"], int) or manifest["format"] > FORMAT:
                raise ValueError("of another format")
        except FileNotFoundError as error:
            raise DamagedError(f"it has no {MANIFEST}") from error
        except OSError as error:
            raise _unreadable(self.path / MANIFEST, error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{MANIFEST} can't be read: {str(error) or type(error).__name__}") from error
        return manifest


class CheckpointStore:
    """The checkpoints in one folder, each `step-<n>`. `write` makes the folder."""

    def __init__(self, directory: Path):
        self.directory = directory

    def newest_first(self) -> list[Saved]:
        """All checkpoints, whole or not. Folders come before files of earlier versions."""
        if not self.directory.is_dir():
            return []
        with disk_errors(self.directory):
            found = [saved for entry in self.directory.iterdir() if (saved := _as_checkpoint(entry))]
        return sorted(found, key=lambda saved: (saved.step, saved.is_folder), reverse=True)

    def write(
        self, step: int, write: Callable[[str], None], read_back: Callable[[str], None], facts: Mapping[str, Any]
    ) -> Saved:
        """Adds the checkpoint of `step` updates. One that is there already is left as it is.

        Args:
            write: writes files that begin with the prefix that it is called with.
            read_back: reads these files again from the disk, and raises an error if they are not as written.
            facts: what else the manifest shall hold, such as the values that decide what is learned.

        Raises:
            CheckpointError: a file can't be written; nothing is left of the checkpoint, and others are untouched.
        """
        saved = Saved(step, self.directory / f"step-{step}")
        if saved.path.is_symlink():
            raise CheckpointError(f"{saved.path} is a link, and a checkpoint is a folder: move the link away")
        if saved.is_folder:
            return saved
        unfinished = self.directory / f"{UNFINISHED}{step}"
        with disk_errors(saved.path):
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                write(str(unfinished / PREFIX))
                files = sorted(unfinished.iterdir())
                for file in files:
                    sync(file)
                    _drop_from_cache(file)
                read_back(str(unfinished / PREFIX))
                self._add_manifest(unfinished, files, step, facts)
                unfinished.rename(saved.path)
                sync(self.directory)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
        return saved

    def keep(self, kept: Callable[[list[Saved]], list[Saved]]) -> None:
        """Deletes the checkpoints that are not among kept(all of them, newest first)."""
        everything = self.newest_first()
        for saved in set(everything) - set(kept(everything)):
            self._delete(saved)

    def quarantine(self, saved: Saved, reason: str) -> Path:
        """Moves a damaged checkpoint to quarantine/, with the reason. Returns where it is now."""
        parent = self.directory / QUARANTINE
        with disk_errors(parent):
            parent.mkdir(exist_ok=True)
            names = (f"step-{saved.step}" + (f".{count}" if count else "") for count in range(10**6))
            place = next(parent / name for name in names if not (parent / name).exists())
            if saved.is_folder:
                saved.path.rename(place)
            else:
                place.mkdir()
                for file in _files_of(saved):
                    file.rename(place / file.name)
            sync(self.directory)
            (place / REASON).write_text(f"{reason}\n", encoding="utf-8")
        return place

    def sweep(self) -> None:
        """Deletes what a killed process has left unfinished."""
        if not self.directory.is_dir():
            return
        with disk_errors(self.directory):
            entries = list(self.directory.iterdir())
        for entry in entries:
            if entry.name.startswith(UNFINISHED) or re.fullmatch(r"step-\d+_temp", entry.name):
                shutil.rmtree(entry, ignore_errors=True)

    def _add_manifest(self, folder: Path, files: list[Path], step: int, facts: Mapping[str, Any]) -> None:
        versions = {"accumtrain": __version__, "python": platform.python_version()}
        manifest = {
            "format": FORMAT,
            "step": step,
            "written": time.time(),
            "versions": versions,
            **facts,
            "files": {file.name: _fingerprint(file) for file in files},
        }
        write_json(folder / MANIFEST, manifest)
        sync(folder)

    def _delete(self, saved: Saved) -> None:
        """Deletes a checkpoint. It is hidden by a rename first, so that a half deleted one is never listed."""
        with disk_errors(saved.path):
            if saved.is_folder:
                hidden = self.directory / f"{UNFINISHED}{saved.step}-old"
                saved.path.rename(hidden)
                shutil.rmtree(hidden)
            else:
                for file in _files_of(saved):  # the index first
                    file.unlink()


def _as_checkpoint(entry: Path) -> Saved | None:
    if (match := FOLDER.fullmatch(entry.name)) and entry.is_dir() and not entry.is_symlink():
        return Saved(int(match[1]), entry)
    if (match := EARLIER.fullmatch(entry.name)) and entry.is_file():
        return Saved(int(match[1]), entry.with_suffix(""))
    return None


def _files_of(saved: Saved) -> Iterator[Path]:
    """The files of a checkpoint of earlier versions, the index first."""
    yield saved.index
    yield from sorted(saved.path.parent.glob(f"{saved.path.name}.data-*"))


def _drop_from_cache(file: Path) -> None:
    """Makes the next read of a synced file come from the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _unreadable(file: Path, error: OSError) -> Exception:
    """The error to raise: DamagedError if the file itself is at fault, else CheckpointError, as it may be whole."""
    if error.errno in OF_THE_FILE:
        return DamagedError(f"{file.name}: {error.strerror}")
    return CheckpointError(f"{file} can't be read: {error.strerror}; mend that and run the same command again")


def _opened(file: Path) -> BinaryIO:
    """The file for reading. Raises OSError, also for a pipe, whose reader would wait for ever."""
    return os.fdopen(open_regular(file, os.O_RDONLY), "rb")


def _fingerprint(file: Path) -> dict[str, Any]:
    """Size in bytes and CRC32C of a file, as the manifest holds them."""
    import google_crc32c  # takes 10 ms, which --help has no use for

    checksum = 0
    with _opened(file) as content:
        while chunk := content.read(CHUNK):
            checksum = google_crc32c.extend(checksum, chunk)
        return {"bytes": content.tell(), "crc32c": f"{checksum:08x}"}


def _difference(found: Mapping[str, Any], expected: Any) -> str:
    bytes_ = expected.get("bytes") if isinstance(expected, Mapping) else None
    if found["bytes"] != bytes_:
        return f"{found['bytes']} of {bytes_} bytes"
    return "the same size, another checksum"
