"""Errors about a single example, which say its name and what is wrong with it."""

from __future__ import annotations

from accumtrain.errors import DataError

_REMEDY = "replace or remove it, or set data.on_error=skip to go on without it"


class BadExample(DataError):
    """An example that can't be used.

    Attributes:
        name: A file, or a record of a file.
        reason: What is wrong with it, to be read after its name.
    """

    def __init__(self, name: str, reason: str, remedy: str) -> None:
        super().__init__(f"{name} {reason}: {remedy}")
        self.name, self.reason = name, reason


class UnreadableExample(BadExample):
    """An example that can't be read or decoded. data.on_error=skip goes on without it."""

    def __init__(self, name: str, reason: str, remedy: str = _REMEDY) -> None:
        super().__init__(name, reason, remedy)
