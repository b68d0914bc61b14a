"""The checkpoints of a run as folders: each is whole or absent, and the newest whole one is found by listing.

A checkpoint is written into a hidden folder, synced, and made visible by one rename. Its manifest.json holds the size
and the checksum of every file, and one of itself. A checkpoint that fails this check is moved to quarantine/, never
deleted. No TensorFlow here.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from accumtrain.console import warn
from accumtrain.errors import CheckpointError
from accumtrain.runs.files import (
    disk_errors,
    list_folder,
    make_inner_folder,
    open_regular,
    parse_json,
    sync_to_disk,
    to_json_value,
    write_atomic,
)
from accumtrain.runs.names import BEST, QUARANTINE
from accumtrain.runs.schema import AnyFormat, Manifest, OfFile
from accumtrain.version import __version__

MANIFEST, PREFIX, REASON = "manifest.json", "state", "reason.txt"
UNFINISHED = ".unfinished-"
FORMAT = 2
CHECKSUM = "crc32c"  # key of the manifest's checksum of itself
CHUNK = 2**20  # bytes read at once
MOST_BYTES = 2**24  # of a manifest
# Errors of reading that lie in the file: it is not there, is no file, or its place on the disk is bad.
FILE_ERRNOS = (errno.ENOENT, errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.EIO)
FOLDER = re.compile(r"step-([0-9]{1,18})")


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
        path: its folder.
    """

    step: int
    path: Path

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    @property
    def written_at(self) -> float:
        """The time at which it was written, in seconds since the epoch."""
        try:
            return self.manifest()["written"]
        except DamagedError:
            return self.path.stat().st_mtime

    @property
    def prefix(self) -> str:
        """The common prefix of its files, by which TensorFlow names a checkpoint."""
        return str(self.path / PREFIX)

    def check(self) -> Manifest:
        """Compare every file with the manifest. Return the manifest.

        Raises:
            DamagedError: a file is missing or has another content, or the manifest belongs to another update.
            CheckpointError: a file can't be read now, or is of another version. It may be whole.
        """
        manifest = self.manifest()
        for name, expected in manifest["files"].items():
            try:
                fault = _find_fault(self.path / name, expected)
            except OSError as error:
                raise _unreadable(self.path / name, error) from error
            if fault is not None:
                raise DamagedError(f"{name} is not the file that was written ({fault})")
        return manifest

    def manifest(self) -> Manifest:
        """Return the content of manifest.json. Raise as `check`, which looks at the other files, too."""
        try:
            with _opened(self.path / MANIFEST) as file:
                text = file.read(MOST_BYTES).decode()  # JSON that is cut is none
            content: dict[str, Any] = parse_json(text, AnyFormat)
            if text != seal_manifest(content):
                raise ValueError("it is not the text that was written")
            if content["format"] != FORMAT:
                raise CheckpointError(
                    f"{self.path} has the format {content['format']}, and this version of accumtrain reads the format "
                    f"{FORMAT}: go on with version {content['versions']['accumtrain']}, which wrote it"
                )
            manifest: Manifest = parse_json(text, Manifest)
        except FileNotFoundError as error:
            raise DamagedError(f"it has no {MANIFEST}") from error
        except OSError as error:
            raise _unreadable(self.path / MANIFEST, error) from error
        except ValueError as error:
            raise DamagedError(f"{MANIFEST} is damaged: {error}") from error
        if manifest["step"] != self.step:
            raise DamagedError(f"{MANIFEST} is that of update {manifest['step']}")
        return manifest


def seal_manifest(manifest: Mapping[str, Any]) -> str:
    """Return the text of a manifest.json, which ends with the checksum of all before. A whole one has this text."""
    import google_crc32c  # takes 10 ms, which --help has no use for

    content = {key: value for key, value in to_json_value(manifest).items() if key != CHECKSUM}
    checksum = google_crc32c.value(json.dumps(content).encode())
    return json.dumps({**content, CHECKSUM: f"{checksum:08x}"}, indent=2) + "\n"


class CheckpointStore:
    """The checkpoints in one folder, each `step-<n>`. `write` makes the folder, but none above it."""

    def __init__(self, directory: Path):
        self.directory = directory

    def newest_first(self) -> list[Saved]:
        """Return all checkpoints, whole or not."""
        found = [
            Saved(int(match[1]), entry)
            for entry in list_folder(self.directory)
            if (match := FOLDER.fullmatch(entry.name)) and entry.is_dir() and not entry.is_symlink()
        ]
        return sorted(found, key=lambda saved: saved.step, reverse=True)

    def write(
        self, step: int, write: Callable[[str], None], read_back: Callable[[str], None], facts: Mapping[str, Any]
    ) -> Saved:
        """Add the checkpoint of `step` updates. One that is there already stays unchanged.

        Args:
            write: writes files that begin with the prefix that it is called with.
            read_back: reads these files again from the disk, and raises an error if they are not as written.
            facts: further content of the manifest, such as the values that decide what is learned.

        Raises:
            CheckpointError: a file can't be written; nothing is left of the checkpoint, and others are untouched.
        """
        saved = Saved(step, self.directory / f"step-{step}")
        if saved.path.is_symlink():
            raise CheckpointError(f"{saved.path} is a link, and a checkpoint is a folder: move the link away")
        if saved.exists:
            return saved
        unfinished = self.directory / f"{UNFINISHED}{step}"
        with disk_errors(saved.path):
            try:
                make_inner_folder(self.directory)
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                write(str(unfinished / PREFIX))
                files = sorted(unfinished.iterdir())
                for file in files:
                    sync_to_disk(file)
                    with file.open("rb") as synced:  # the next read comes from the disk
                        os.posix_fadvise(synced.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                read_back(str(unfinished / PREFIX))
                self._add_manifest(unfinished, files, step, facts)
                unfinished.rename(saved.path)
                sync_to_disk(self.directory)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
        return saved

    def keep(self, kept: Callable[[list[Saved]], list[Saved]]) -> None:
        """Delete the checkpoints that are not among kept(all of them, newest first)."""
        everything = self.newest_first()
        for saved in set(everything) - set(kept(everything)):
            with disk_errors(saved.path):
                hidden = self.directory / f"{UNFINISHED}{saved.step}-old"  # so a half deleted one is never listed
                saved.path.rename(hidden)
                shutil.rmtree(hidden)

    def quarantine(self, saved: Saved, reason: str) -> Path:
        """Move a damaged checkpoint to quarantine/, with the reason. Return where it is now."""
        parent = self.directory / QUARANTINE
        with disk_errors(parent):
            make_inner_folder(parent)
            names = (f"step-{saved.step}" + (f".{count}" if count else "") for count in range(10**6))
            place = next(parent / name for name in names if not (parent / name).exists())
            saved.path.rename(place)
            sync_to_disk(self.directory)
            (place / REASON).write_text(f"{reason}\n", encoding="utf-8", errors="backslashreplace")
        return place

    def sweep(self) -> None:
        """Delete what a killed process has left unfinished."""
        for entry in list_folder(self.directory):
            if entry.name.startswith(UNFINISHED):
                shutil.rmtree(entry, ignore_errors=True)

    def _add_manifest(self, folder: Path, files: list[Path], step: int, facts: Mapping[str, Any]) -> None:
        manifest = {
            "format": FORMAT,
            "step": step,
            "written": time.time(),
            "versions": {"accumtrain": __version__, "python": platform.python_version()},
            **facts,
            "files": {file.name: _fingerprint(file) for file in files},
        }
        write_atomic(folder / MANIFEST, seal_manifest(manifest))
        sync_to_disk(folder)


def best_first(directory: Path) -> list[Saved]:
    """Return the checkpoints of the best state, then all others, each the newest first."""
    return [*CheckpointStore(directory / BEST).newest_first(), *CheckpointStore(directory).newest_first()]


def newest_first(directory: Path) -> list[Saved]:
    """Return all checkpoints, the newest first. Of one update the best state comes last."""
    found = [*CheckpointStore(directory).newest_first(), *CheckpointStore(directory / BEST).newest_first()]
    return sorted(found, key=lambda saved: -saved.step)


def newest_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of the newest checkpoint with a whole one; None without. Other files are not looked at.

    Raises:
        CheckpointError: one can't be read now, or is of another version.
    """
    for saved in newest_first(directory):
        with suppress(DamagedError):
            return saved.manifest()
    return None


def find_whole(
    candidates: Iterable[Saved], dismiss: Callable[[Saved, str], str] = lambda saved, reason: ""
) -> tuple[Saved, Manifest]:
    """Return the first checkpoint that is whole, and its manifest. Warn of the damaged ones before it.

    Args:
        candidates: at least one checkpoint.
        dismiss: called for a damaged checkpoint with the reason. Returns further text of the warning.

    Raises:
        CheckpointError: none of them is whole.
        ChangedError: one is not there any more.
    """
    damages = []
    for saved in candidates:
        try:
            manifest = saved.check()
        except DamagedError as error:
            if not saved.exists:
                raise ChangedError(saved) from error
            damages.append(f"{saved.path} is damaged: {error}{dismiss(saved, str(error))}")
            continue
        for damage in damages:
            warn(f"{damage}; {saved.path} is taken instead")
        return saved, manifest
    raise CheckpointError(
        f"no checkpoint of this run is whole: {'; '.join(damages)}. Put back a copy of one if there is any, or start "
        "anew under another run.name"
    )


def _unreadable(file: Path, error: OSError) -> Exception:
    """Return a DamagedError if the file itself is at fault, else a CheckpointError, as it may be whole."""
    if error.errno in FILE_ERRNOS:
        return DamagedError(f"{file.name}: {error.strerror}")
    return CheckpointError(f"{file} can't be read: {error.strerror}; fix that and run the same command again")


def _opened(file: Path) -> BinaryIO:
    """Open a file for reading. Raise OSError, also for a pipe, whose reader would wait for ever."""
    return os.fdopen(open_regular(file, os.O_RDONLY), "rb")


def _fingerprint(file: Path) -> dict[str, Any]:
    """Return size in bytes and CRC32C of a file, as the manifest holds them."""
    with _opened(file) as content:
        checksum = crc32c_of(content)
        return {"bytes": content.tell(), "crc32c": checksum}


def _find_fault(file: Path, expected: OfFile) -> str | None:
    """Return what a file differs in from the one that was written; None if it is that."""
    size = file.lstat().st_size  # first, as the content of a far larger one takes long to read
    found = _fingerprint(file) if size == expected["bytes"] else {"bytes": size}
    if found["bytes"] != expected["bytes"]:
        return f"{found['bytes']} of {expected['bytes']} bytes"
    return None if found == expected else "the same size, another checksum"


def crc32c_of(content: BinaryIO) -> str:
    """Return the CRC32C of all that is left to read, as 8 hexadecimal digits."""
    import google_crc32c  # takes 10 ms, which --help has no use for

    checksum = 0
    while chunk := content.read(CHUNK):
        checksum = google_crc32c.extend(checksum, chunk)
    return f"{checksum:08x}"
