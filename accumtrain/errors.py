"""What can go wrong for a user, each with the exit code a script can act on.

A message names the value, the rule it broke and the remedy. The command line prints it without a traceback;
any other exception is a bug and exits with 1.
"""

from __future__ import annotations

from typing import Any


class AccumtrainError(Exception):
    """Base of all errors that are not bugs of accumtrain.

    Args:
        result: what the job has found out all the same; it is written where the result of the job goes.
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
    """The loss or the gradient stopped being finite; the state is that of the last good update."""

    exit_code = 4


class CheckpointError(AccumtrainError):
    """A checkpoint that can't be read, written, or does not fit the model."""

    exit_code = 5


class OutOfMemoryError(AccumtrainError):
    """The device's memory, or the limit set for it, was exceeded."""

    exit_code = 6


class VerificationError(AccumtrainError):
    """job=verify ran to its end, and a check missed its bound."""

    exit_code = 7


class WorkerLostError(AccumtrainError):
    """Another worker went away, or did not answer in time; the last checkpoint can be continued."""

    exit_code = 75


class Preempted(AccumtrainError):
    """Stopped by a signal; the state is saved and the same command continues the run."""

    exit_code = 75
