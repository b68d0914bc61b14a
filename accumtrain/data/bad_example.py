"""Errors about a single example, which say its name and what is wrong with it."""

from __future__ import annotations

from accumtrain.errors import DataError


class BadExample(DataError):
    """An example that can't be used.

    Attributes:
        name: A file, or a record of a file.
        reason: What is wrong with it, to be read after its name.
        remedy: What to do about it.
    """

    def __init__(self, name: str, reason: str, remedy: str, otherwise: str = "") -> None:
        super().__init__(f"{name} {reason}: {remedy}{otherwise}")
        self.name, self.reason, self.remedy = name, reason, remedy


class UnreadableExample(BadExample):
    """An example that can't be read or decoded. data.on_error=skip goes on without it."""

    def __init__(self, name: str, reason: str, remedy: str = "replace or remove it") -> None:
        super().__init__(name, reason, remedy, ", or set data.on_error=skip to go on without it")
