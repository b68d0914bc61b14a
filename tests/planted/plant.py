"""Plant a fault: replace a function or method for the time of a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Fault:
    """A fault, and the configuration that it shows in.

    Attributes:
        name: the fault in words.
        place: the object that has the attribute, a class or a module.
        attribute: the name of the function in `place`.
        wrong: makes the faulty function from the right one.
        overrides: of the run that is verified.
    """

    name: str
    place: Any
    attribute: str
    wrong: Callable[[Callable[..., Any]], Any]
    overrides: tuple[str, ...]

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.place, self.attribute, self.wrong(getattr(self.place, self.attribute)))


def result(change: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function's result is changed."""
    return lambda right: lambda *args, **kwargs: change(right(*args, **kwargs))


def argument(place: int, change: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An argument of the function is changed."""

    def wrong(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return right(*(change(each) if number == place else each for number, each in enumerate(args)), **kwargs)

        return call

    return wrong


def gradients(change: Callable[[list], list]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The pullback's gradients of variables are changed."""
    return _of_pullback(lambda d_x, found: (d_x, change(found)))


def input_gradient(change: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The pullback's gradient of the input is changed."""
    return _of_pullback(lambda d_x, found: (change(d_x), found))


def _of_pullback(change: Callable[[Any, list], tuple]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrong(right: Callable[..., Any]) -> Callable[..., Any]:
        def pullback(*args: Any, **kwargs: Any) -> Any:
            y, backward = right(*args, **kwargs)
            return y, lambda *d_y: change(*backward(*d_y))

        return pullback

    return wrong
