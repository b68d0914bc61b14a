"""Work in a process of its own: what that takes, loads or breaks is gone with it.

A folder carries the request and the answer. The child holds a pipe whose other end its parent has: when the parent
says a word there, or is gone, the child gets a SIGTERM. The child is the program that this process is (see program.py).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from accumtrain.console import format_seconds, say
from accumtrain.errors import AccumtrainError
from accumtrain.kinds.table import load

REQUEST, ANSWER, DOING, LAST_WORDS = "request.json", "answer.json", "doing", "stderr"
TASK = "task"  # of a request: "module:function" that the child calls
STOP = b"."  # the word to the child; a parent that is gone says none
SILENCE = 20.0  # seconds after which it is said what the child is doing
LOOK = 0.5  # seconds between two looks whether the child is still needed


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        code: its exit code; the negative number of the signal that killed it.
        answer: what it answered; {} without an answer.
        last_words: the end of what it wrote to stderr, where that was not shown.
    """

    code: int
    answer: dict[str, Any]
    last_words: str


class Child:
    """A process that works on one request. A context: its end stops the child and waits for its end.

    Args:
        command: gets the folder as one more argument.
        folder: is there, and empty.
        request: what the child finds in the folder.
        label: what the child prints is printed here, each line behind this; None keeps stderr in the folder.
        environment: variables beside those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        request: Mapping[str, Any],
        label: str | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self._folder, self._shown = folder, label is not None
        (folder / REQUEST).write_text(json.dumps(request))
        with (folder / LAST_WORDS).open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if label is None else subprocess.PIPE,
                stderr=errors if label is None else subprocess.PIPE,
                # it finds the modules where this process has found them
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
                start_new_session=label is not None,  # Ctrl-C is then the matter of the command that shows it
            )
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._copies = [
            threading.Thread(target=_copy_lines, args=(source, target, label)) for source, target in streams if source
        ]

    def __enter__(self) -> Child:
        for copy in self._copies:
            copy.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._shown:
            self._process.kill()  # nothing of it is to be saved
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError), pipe:  # it has ended
            pipe.write(STOP)
        self._process.wait()
        for copy in self._copies:
            copy.join()

    def wait(self, seconds: float) -> bool:
        """Has it ended, within so many seconds?"""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    @property
    def doing(self) -> str | None:
        """What the child says that it is doing."""
        told = self._folder / DOING
        return told.read_text() if told.exists() else None

    def ended(self) -> Ended:
        """How it ended. After the context."""
        answer = self._folder / ANSWER
        last_words = (self._folder / LAST_WORDS).read_text(errors="replace")[-4000:]
        return Ended(self._process.returncode, json.loads(answer.read_text()) if answer.exists() else {}, last_words)


def ask(command: Sequence[str], folder: Path, request: Mapping[str, Any], doing: str) -> Ended:
    """Runs a child to its end, in silence but for a line now and then.

    Args:
        doing: what the child does before it has said so itself.
    """
    for left_over in (ANSWER, DOING):
        (folder / left_over).unlink(missing_ok=True)
    started = time.monotonic()
    with Child(command, folder, request) as child:
        while not child.wait(SILENCE):
            say(f"  {format_seconds(time.monotonic() - started)}: {child.doing or doing}")
    return child.ended()


def show(
    command: Sequence[str],
    request: Mapping[str, Any],
    label: str,
    still_needed: Callable[[], bool],
    environment: Mapping[str, str],
) -> Ended:
    """Runs a child to its end and prints what it prints, each line behind `label`.

    Once it is not `still_needed` the child gets a SIGTERM and stops with its state saved.
    """
    with tempfile.TemporaryDirectory(prefix="accumtrain-job-") as name:
        with Child(command, Path(name), request, label, environment) as child:
            while still_needed() and not child.wait(LOOK):
                pass
        return child.ended()


def check(ended: Ended, what: str) -> None:
    """Raises what the child has failed with.

    Raises:
        AccumtrainError: the error that the child's answer explains.
        RuntimeError: it ended by a bug; its last words are in the message.
    """
    if ended.code == 0:
        return
    if "message" in ended.answer:
        kinds = AccumtrainError.__subclasses__()
        raise next(kind for kind in kinds if kind.exit_code == ended.code)(ended.answer["message"])
    raise RuntimeError(f"{what} ended with code {ended.code}:\n{ended.last_words}")


def _copy_lines(source: IO[bytes], target: TextIO, label: str) -> None:
    """Line by line, so that those of jobs side by side stay whole."""
    with source:
        for line in source:
            text = line.decode(errors="replace")
            target.write(f"{label} | {text}" if text.strip() else text)
            target.flush()


# --- in the child -----------------------------------------------------------------------------------------------


def serve(folder: Path) -> int:
    """Does the task that is asked for in the folder. Returns the exit code."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a sweep that runs jobs side by side blocks it
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    request = json.loads((folder / REQUEST).read_text())
    try:
        answer, code = load(request[TASK])(request, folder), 0
    except AccumtrainError as error:
        answer, code = {"message": str(error)}, error.exit_code
    except KeyboardInterrupt:  # nobody here to be told of it: the parent sees that a signal has ended its child
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    (folder / ANSWER).write_text(json.dumps(answer))
    return code


def _end_with_parent(folder: Path) -> None:
    """Stops this process when its parent wants it to, or is gone."""
    if os.read(sys.stdin.fileno(), 1) != STOP:
        shutil.rmtree(folder, ignore_errors=True)  # which nobody else would remove
    os.kill(os.getpid(), signal.SIGTERM)
