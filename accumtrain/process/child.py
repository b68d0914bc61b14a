"""Work in a child process: its memory, its imports and its crashes end with it.

Request and answer are files in a folder. The child reads from a pipe that its parent holds open: when the parent writes
to it or ends, the child gets a SIGTERM. The child runs the same program as this process (see program.py).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from accumtrain.console import format_seconds, say
from accumtrain.errors import AccumtrainError
from accumtrain.process.signals import SIGNALS, end_on_signals
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.registry import load

REQUEST, ANSWER, DOING, STDERR_FILE = "request.json", "answer.json", "doing", "stderr"
TASK = "task"  # key of a request: "module:function" that the child calls
PREPARE = "prepare"  # key of a request: "module:function", and the argument with which the child calls it before
STOP = b"."  # the parent writes it to stop the child; a parent that has ended writes nothing
SILENCE = 20.0  # seconds between two lines about a child's progress
LOOK = 0.5  # seconds between two checks whether the child is still needed
REMOVALS = 20  # tries to remove a folder of which a task makes use

_prepare: ContextVar[tuple[str, str] | None] = ContextVar("prepare", default=None)


@dataclass(frozen=True)
class ChildResult:
    """The end of a child.

    Attributes:
        code: its exit code, or the negative number of the signal that ended it.
        answer: its answer; {} if there is none.
        last_words: the end of its stderr, if that was not shown.
    """

    code: int
    answer: dict[str, Any]
    last_words: str


class Child:
    """A process that handles one request. Leaving the context stops the child and waits for its end.

    Args:
        command: the command line, to which the folder is added as the last argument.
        folder: an existing folder for request and answer.
        request: the content of the request.
        label: prefix of each line of the child's output, which is shown; None hides it and keeps stderr in the folder.
        environment: variables in addition to those of this process.
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
        (folder / REQUEST).write_text(json.dumps({**request, PREPARE: _prepare.get()}), encoding="utf-8")
        with (folder / STDERR_FILE).open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if label is None else subprocess.PIPE,
                stderr=errors if label is None else subprocess.PIPE,
                # the child imports modules from the same places
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
                start_new_session=label is not None,  # a terminal's Ctrl-C then reaches this process only
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
            self._process.kill()  # it has nothing to save
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError), pipe:  # it has ended
            pipe.write(STOP)
        self._process.wait()
        for copy in self._copies:
            copy.join()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the child. Return whether it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    @property
    def doing(self) -> str | None:
        """The last words of the child about its progress; None if it has written nothing."""
        told = self._folder / DOING
        return told.read_text(encoding="utf-8") if told.exists() else None

    def ended(self) -> ChildResult:
        """Return how the child ended. Call it after the context."""
        answer = self._folder / ANSWER
        last_words = (self._folder / STDERR_FILE).read_text(encoding="utf-8", errors="replace")[-4000:]
        return ChildResult(
            self._process.returncode,
            json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {},
            last_words,
        )


@contextmanager
def prepared_by(function: Callable[[str], None], argument: str) -> Iterator[None]:
    """Make each child of this context call `function(argument)`, a function of a module, before its task."""
    token = _prepare.set((f"{function.__module__}:{function.__name__}", argument))
    try:
        yield
    finally:
        _prepare.reset(token)


def run_child(command: Sequence[str], folder: Path, request: Mapping[str, Any], doing: str) -> ChildResult:
    """Run a child to its end without its output. Print a line about its progress every SILENCE seconds.

    Args:
        doing: the text of this line until the child has written what it is doing.
    """
    for left_over in (ANSWER, DOING):
        (folder / left_over).unlink(missing_ok=True)
    started = time.monotonic()
    with Child(command, folder, request) as child:
        while not child.wait(SILENCE):
            say(f"  {format_seconds(time.monotonic() - started)}: {child.doing or doing}")
    return child.ended()


def stream_child(
    command: Sequence[str],
    request: Mapping[str, Any],
    label: str,
    still_needed: Callable[[], bool],
    environment: Mapping[str, str],
) -> ChildResult:
    """Run a child to its end and show its output, each line with the prefix `label`.

    When `still_needed` returns False, the child gets a SIGTERM and stops with its state saved.
    """
    with temporary_folder("job") as folder:
        with Child(command, folder, request, label, environment) as child:
            while still_needed() and not child.wait(LOOK):
                pass
        return child.ended()


def raise_child_error(ended: ChildResult, what: str) -> None:
    """Raise the error that a child has ended with, if any.

    Raises:
        AccumtrainError: the child's error, with the message of its answer.
        RuntimeError: the child ended by a bug; the end of its stderr is in the message.
    """
    if ended.code == 0:
        return
    if "message" in ended.answer:
        kinds = AccumtrainError.__subclasses__()
        kind = next((kind for kind in kinds if kind.exit_code == ended.code), AccumtrainError)
        raise kind(ended.answer["message"])
    raise RuntimeError(f"{what} ended with code {ended.code}:\n{ended.last_words}")


def _copy_lines(source: IO[bytes], target: TextIO, label: str) -> None:
    """Copy line by line, so that lines of parallel jobs do not mix."""
    with source:
        for line in source:
            text = line.decode(errors="replace")
            target.write(f"{label} | {text}" if text.strip() else text)
            target.flush()


# ---- in the child ----


def serve_request(folder: Path) -> int:
    """Run the task of the request in the folder. Return the exit code."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a sweep with parallel jobs blocks those of a terminal
    end_on_signals()
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    try:
        if request.get(PREPARE) is not None:
            prepare, argument = request[PREPARE]
            load(prepare)(argument)
        answer, code = load(request[TASK])(request, folder), 0
    except AccumtrainError as error:
        answer, code = {"message": str(error)}, error.exit_code
    except KeyboardInterrupt:  # it ends by the signal itself, so that the parent sees it in the exit code
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    (folder / ANSWER).write_text(json.dumps(answer), encoding="utf-8")
    return code


def _end_with_parent(folder: Path) -> None:
    """Stop this process when its parent asks for it or has ended."""
    if os.read(sys.stdin.fileno(), 1) != STOP:
        for _ in range(REMOVALS):  # the parent can't remove it any more, and the task may write to it meanwhile
            shutil.rmtree(folder, ignore_errors=True)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # it is after a first signal, while a job saves
        os.kill(os.getpid(), signal.SIGTERM)
