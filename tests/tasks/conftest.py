"""Fixtures for runs of the tasks on canvases of digits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accumtrain.config.registries import REGISTRIES
from accumtrain.tasks.config import METRICS
from tests.tasks import canvases


@pytest.fixture(autouse=True, scope="package")
def registered() -> Iterator[None]:
    """data=canvas_labels and data=canvas_numbers are choices, and what a test registers is gone after its module."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (*REGISTRIES.values(), METRICS):
            patch.setattr(registry, "entries", dict(registry.entries))
        canvases.register()
        yield
