"""Fixtures for runs of the tasks on canvases of digits and on sentences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accumtrain.config.registries import REGISTRIES
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
