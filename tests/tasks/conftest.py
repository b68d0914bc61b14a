"""Fixtures for runs of the tasks on canvases of digits and on sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.dispatch import run
from accumtrain.engine.step import Step
from accumtrain.tasks.config import METRICS
from tests.tasks import canvases, texts


@pytest.fixture(autouse=True, scope="package")
def registered() -> Iterator[None]:
    """Data and models for the tests are choices, and what a test registers is gone after its module."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (*REGISTRIES.values(), METRICS):
            patch.setattr(registry, "entries", dict(registry.entries))
        canvases.register()
        texts.register()
        yield


class Killed(BaseException):
    """Ends a run as a kill would."""


@pytest.fixture
def train_until_killed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Config, int], None]:
    """Trains a run, and ends it after so many updates."""

    def train(config: Config, updates: int) -> None:
        commit, made = Step.commit, list[bool]()

        def commit_or_die(*arguments: Any, **named: Any) -> Any:
            if len(made) == updates:
                raise Killed
            made.append(True)
            return commit(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(Step, "commit", commit_or_die)
            with pytest.raises(Killed):
                run(config)

    return train
