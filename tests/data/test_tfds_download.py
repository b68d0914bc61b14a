"""data.download=true, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests
import tensorflow_datasets as tfds

from accumtrain.data.config import TfdsConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from tests.data.conftest import assert_refused


def config(folder: Path, name: str = "mnist") -> TfdsConfig:
    return TfdsConfig(name=name, dir=str(folder), download=True, mean=[0.0], std=[1.0])


def failing(error: Exception) -> Any:
    class Builder:
        def download_and_prepare(self) -> None:
            raise error

    return lambda name, data_dir: Builder()


def test_it_is_prepared_once(tiny_pictures, tmp_path, monkeypatch):
    built = []

    def builder(name, data_dir):
        built.append(name)
        return tiny_pictures(data_dir=data_dir)

    monkeypatch.setattr(tfds, "builder", builder)
    monkeypatch.setattr(tfds, "list_builders", lambda **_: ["tiny_pictures"])
    for _ in range(2):
        data = open_data(config(tmp_path, "tiny_pictures"), seed=0)
        assert next(iter(make_eval_batches(data, batch=7)))["inputs"].shape == (7, 6, 6, 3)
    assert built == ["tiny_pictures"]


def test_a_data_set_that_there_is_not_is_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds, "builder", failing(AssertionError("asked")))
    for name in ("mnost", "huggingface:mnist", "somebody/mnist"):
        assert_refused(config(tmp_path, name), r"no data set of that name")


REFUSED = requests.Request("GET", "https://example.com/a.gz").prepare()
REASONS = [
    (requests.ConnectionError("refused", request=REFUSED), r"there is no connection to example\.com; give"),
    (OSError(28, "No space left on device"), r"OSError: \[Errno 28\] No space left on device\. Or"),
    (AssertionError("Manual directory a does not exist.\nCreate it."), r"a does not exist\. Create it\. Or"),
    (
        ModuleNotFoundError("No module named 'x'"),
        r"ModuleNotFoundError: No module named 'x'\. Or prepare it on another",
    ),
]


@pytest.mark.parametrize(("error", "words"), REASONS)
def test_what_fails_is_told(tmp_path, monkeypatch, error, words):
    monkeypatch.setattr(tfds, "builder", failing(error))
    assert_refused(config(tmp_path), rf"data\.download=true: mnist can't be downloaded and prepared in .*{words}")


@pytest.mark.slow  # tensorflow-datasets tries for some minutes
def test_there_is_no_network(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://localhost:9")  # where nobody listens
    assert_refused(config(tmp_path), r"there is no connection to storage\.googleapis\.com")
