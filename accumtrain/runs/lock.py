"""The lock of a run's folder, into which one process at a time writes."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.runs.files import open_regular
from accumtrain.runs.names import LOCK, MARK


class Lock:
    """Context that holds the lock of a run's folder.

    It locks the file .lock, which names the owner, and the folder itself, in case somebody deletes that file.

    Raises (on entering):
        ConfigError: another process holds the lock, the file system has none, or .lock is a link.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._held: list[int] = []  # file descriptors

    def __enter__(self) -> Lock:
        path = self._folder / LOCK
        try:
            file = open_regular(path, os.O_RDWR | os.O_CREAT)
            self._held.append(file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock_folder()
            with suppress(OSError):  # on a full disk the lock holds without its owner's name
                started = time.strftime("%Y-%m-%d %H:%M:%S %z")
                owner = {"host": socket.gethostname(), "process": os.getpid(), "started": started}
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(owner).encode(), 0)
        except BlockingIOError as error:
            other = self._read_owner()
            self._release()
            raise ConfigError(
                f"{other} is training in {self._folder}; wait for it or stop it, or choose another run.name"
            ) from error
        except OSError as error:
            self._release()
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise ConfigError(f"{path} is a link, a folder or a pipe, not the file of a run: delete it") from error
            raise ConfigError(
                f"the run's folder {self._folder} can't be locked ({error.strerror}); choose a run.dir on a "
                "file system with locks"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the folder was moved away
            if {file.name for file in self._folder.iterdir()} <= {LOCK, MARK}:  # nothing was written
                (self._folder / LOCK).unlink()
        self._release()

    def check(self) -> None:
        """Raise CheckpointError if the folder is not in its place any more, or another one is."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._folder.stat(), os.fstat(self._held[-1])):
                return
        raise CheckpointError(
            f"the run's folder {self._folder} was moved or removed while this run trained in it: put it back and run "
            "the same command again"
        )

    def _lock_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._held.append(folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # NFS locks only files; .lock is locked there
            pass

    def _read_owner(self) -> str:
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            owner = json.loads((self._folder / LOCK).read_text(encoding="utf-8"))
            return f"process {owner['process']} on {owner['host']}, started {owner['started']},"
        return "another process"

    def _release(self) -> None:
        while self._held:
            os.close(self._held.pop())  # this releases its lock


def check_free(folder: Path) -> None:
    """Raise ConfigError if another process trains in a folder, so that nothing slow is done before it is refused."""
    if (folder / LOCK).exists():
        with Lock(folder):
            pass
