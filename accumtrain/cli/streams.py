"""Standard output and error that may fail: a reader that has left, a full disk, a closed descriptor. A run goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast


class KeptStream:
    """A stream like `stream` whose writes do not fail. After the first failure its descriptor leads nowhere.

    Attributes:
        name: its name in messages.
        other: the stream on which a loss is told; None before both are there.
        quiet: nothing is said of a reader that has left, as `head` does.
    """

    other: TextIO | None = None
    quiet = False

    def __init__(self, stream: TextIO, name: str):
        self._stream, self.name, self._told = stream, name, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            try:
                action()
            except BlockingIOError:  # a program that shares the pipe or terminal has set O_NONBLOCK
                os.set_blocking(self._stream.fileno(), True)
                self._stream.flush()
        except OSError as error:
            with suppress(OSError):  # without a descriptor its writes keep failing, here
                _lead_nowhere(self._stream.fileno())
            if self._told or self.other is None or (self.quiet and isinstance(error, BrokenPipeError)):
                return
            self._told = True
            self.other.write(
                f"warning: {self.name} can't be written any more: {error.strerror}; the run goes on without it\n"
            )
            self.other.flush()


def keep_streams(*, quiet: bool) -> None:
    """Make stdout and stderr of this process streams that do not fail. More than one call does no harm.

    Args:
        quiet: nothing is said of a reader that has left, as no job runs yet.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: a file of the run must not get this descriptor, as libraries would print into it
            _lead_nowhere(descriptor)
    out, err = _kept(sys.stdout, "stdout"), _kept(sys.stderr, "stderr")
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    out.other, err.other = sys.stderr, sys.stdout
    out.quiet = err.quiet = quiet


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _kept(stream: TextIO | KeptStream | None, name: str) -> KeptStream:
    if isinstance(stream, KeptStream):
        return stream
    if stream is None:  # closed when Python started
        stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")  # a character that the terminal does not know is no error
    return KeptStream(stream, name)
