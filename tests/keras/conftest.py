"""Fixtures of the tests of people's own Keras code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keras
import pytest


@pytest.fixture
def float64() -> Iterator[None]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
