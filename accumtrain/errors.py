"""The errors that are not bugs, each with its exit code.

A message names the value, the rule that it breaks and the remedy. The command line prints it without a traceback. Any
other exception is a bug and exits with 1.
"""

from __future__ import annotations

import re
from typing import Any

# The marks by which TensorFlow says where an error was.
NODES = re.compile(r"\{\{\w*node .*?\}\}|\[\[.*?\]\]|\[Op:\w+\].*")


class AccumtrainError(Exception):
    """Base of all errors that are not bugs of accumtrain.

    Args:
        result: what the job measured before the error, if anything. It is written to the file of the job's result.
    """

    exit_code = 1

    def __init__(self, message: str = "", result: dict[str, Any] | None = None):
        super().__init__(message)
        self.result = result


class ConfigError(AccumtrainError):
    """A mistake in the configuration or the command line."""

    exit_code = 2


class DataError(AccumtrainError):
    """Data that is missing, not prepared, corrupt or of the wrong shape."""

    exit_code = 3


class DivergedError(AccumtrainError):
    """The loss or the gradient is infinite or NaN; the saved state is that of the last finite update."""

    exit_code = 4


class CheckpointError(AccumtrainError):
    """A checkpoint or another file of a run can't be read or written, or a checkpoint does not fit the model."""

    exit_code = 5


class OutOfMemoryError(AccumtrainError):
    """The run needs more memory than the device has or than device.memory_limit_mb allows."""

    exit_code = 6


class VerificationError(AccumtrainError):
    """job=verify or job=export measured more than a bound allows."""

    exit_code = 7


class WorkerLostError(AccumtrainError):
    """Another worker ended or did not answer in time; the run can continue from the last checkpoint."""

    exit_code = 75


class Preempted(AccumtrainError):
    """A signal stopped the run; its state is saved and the same command continues it."""

    exit_code = 75

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: it is no error, so the message alone."""
        return [str(self)]


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error without TensorFlow's marks, or its type if it says nothing."""
    lines = (line.strip() for line in NODES.sub("", str(error)).splitlines())
    return next(filter(None, lines), type(error).__name__)
