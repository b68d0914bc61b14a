"""Fixtures of the tests of people's own Keras code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from tests.keras.gradients import AS_WRITTEN


@pytest.fixture
def float64() -> Iterator[None]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def policy() -> Iterator[Callable[[str], None]]:
    """A function that sets Keras's dtype policy for one test."""
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def seeded() -> Iterator[None]:
    """A seed before the test, and Keras's and the graph optimizer's settings as ever after it."""
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_dtype_policy("float32")
    tf.config.optimizer.set_experimental_options(dict.fromkeys(AS_WRITTEN, True))


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
