"""Work in a process of its own: what that takes, loads or breaks is gone with it.

The parent imports no TensorFlow. A folder carries request and answer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accumtrain.console import format_seconds, say
from accumtrain.errors import AccumtrainError

REQUEST, ANSWER, DOING, LAST_WORDS = "request.json", "answer.json", "doing", "stderr"
SILENCE = 20.0  # seconds after which it is said what the child is doing


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its exit code, its answer ({} without one), the end of what it wrote to stderr."""

    code: int
    answer: dict[str, Any]
    last_words: str


def ask(command: Sequence[str], directory: Path, request: Mapping[str, Any], doing: str) -> Outcome:
    """Runs `command` on a folder, in a process that ends before this function does.

    Args:
        command: gets the folder as one more argument, and finds the request in it.
        doing: what the child does before it has said so itself, in its file DOING.
    """
    (directory / REQUEST).write_text(json.dumps(request))
    for left_over in (ANSWER, DOING):
        (directory / left_over).unlink(missing_ok=True)
    code = _run([*command, str(directory)], directory, doing)
    last_words = (directory / LAST_WORDS).read_text(errors="replace")[-4000:]
    answer = directory / ANSWER
    return Outcome(code, json.loads(answer.read_text()) if answer.exists() else {}, last_words)


def check(outcome: Outcome, what: str) -> None:
    """Raises what the child has failed with.

    Raises:
        AccumtrainError: the error that the child's answer explains.
        RuntimeError: it ended by a bug; its last words are in the message.
    """
    if outcome.code == 0:
        return
    if "message" in outcome.answer:
        kinds = AccumtrainError.__subclasses__()
        raise next(kind for kind in kinds if kind.exit_code == outcome.code)(outcome.answer["message"])
    raise RuntimeError(f"{what} ended with code {outcome.code}:\n{outcome.last_words}")


def _run(command: Sequence[str], directory: Path, doing: str) -> int:
    started = time.monotonic()
    with (directory / LAST_WORDS).open("wb") as errors:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while True:
                try:
                    return child.wait(SILENCE)
                except subprocess.TimeoutExpired:
                    told = directory / DOING
                    task = told.read_text() if told.exists() else doing
                    say(f"  {format_seconds(time.monotonic() - started)}: {task}")
        finally:
            child.kill()
            child.communicate()


# --- in the child -----------------------------------------------------------------------------------------------


def reply(directory: Path, work: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Answers the request in the folder by what `work` makes of it. Returns the exit code."""
    _end_with_parent(directory)
    try:
        answer, code = work(json.loads((directory / REQUEST).read_text())), 0
    except AccumtrainError as error:
        answer, code = {"message": str(error)}, error.exit_code
    (directory / ANSWER).write_text(json.dumps(answer))
    return code


def _end_with_parent(directory: Path) -> None:
    """Ends this process when its parent ends, however that may: the parent holds the other end of stdin."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
