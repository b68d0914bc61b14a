"""Exactness of the stream: bit for bit, whatever the source, the batch size and the place to start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data import pipeline
from accumtrain.data.config import DigitsConfig, FolderConfig, SyntheticConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.source import Dataset
from tests.data.conftest import join
from tests.programs import output_of

GREY = {"mean": [0.3], "std": [0.4]}
COLOUR = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
SIZES = {"train_examples": 21, "test_examples": 10}
FOUR = {"num_classes": 4, **SIZES}
STRONG = {"jitter": 0.4, "randaugment": 1, "erasing": 0.5, "mixup": 0.4, "cutmix": 1.0}


CONFIGS = {
    "array resized and shifted": DigitsConfig(augment="shift", image_size=12, **GREY),
    "generated crop_flip": SyntheticConfig(augment="crop_flip", image_size=10, **COLOUR, channels=3, **FOUR),
    "generated inception": SyntheticConfig(augment="inception", image_size=10, **GREY, channels=1, **FOUR),
    "files inception": FolderConfig(augment="inception", image_size=8, **COLOUR, path="", test_fraction=0.3),
    "generated strong": SyntheticConfig(augment="crop_flip", image_size=9, **GREY, channels=1, **SIZES, **STRONG),
    "files strong and balanced": FolderConfig(image_size=8, sampling="balanced", **COLOUR, path="", **STRONG),
}
SLOW = [*CONFIGS][2:]


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CONFIGS])
def data(request, make_folder, monkeypatch):
    monkeypatch.setattr(pipeline, "_CHUNK", 7)
    config = CONFIGS[request.param]
    if request.param.startswith("files"):
        config = replace(config, path=str(make_folder(count=10, height=9, width=14)))
    return open_data(config, seed=0)


def take(data: Dataset, elements: int, *, batch: int, first: int = 0, seed: int = 3) -> dict[str, np.ndarray]:
    """Return some elements of the training stream, put together."""
    return join(make_train_batches(data, batch=batch, first=first, seed=seed).take(elements))


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], strict=True)


def test_elements_have_static_shapes(data):
    specs = {
        "inputs": tf.TensorSpec([4, *data.shape], tf.float32),
        "targets": tf.TensorSpec([4], tf.int32),
        "weight": tf.TensorSpec([4], tf.float32),
    }
    mixed = {"other_targets": tf.TensorSpec([4], tf.int32), "share": tf.TensorSpec([4], tf.float32)}
    assert make_eval_batches(data, batch=4).element_spec == specs
    expected = specs | mixed if data.mix.is_on else specs
    assert make_train_batches(data, batch=4, first=0, seed=0).element_spec == expected


def test_the_stream_of_huge_batches_has_an_end(data):
    """Of 2^40 batches; what int64 holds is enough for all."""
    assert make_train_batches(data, batch=10**8, first=0, seed=0).element_spec["weight"].shape == [10**8]


@pytest.mark.slow
def test_stream_can_be_entered_anywhere(data):
    whole = take(data, 8, batch=8)
    for first in (1, 8, 37):
        part = {key: value[first : first + 24] for key, value in whole.items()}
        assert_same(take(data, 3, batch=8, first=first), part)


def test_stream_does_not_depend_on_batch_size(data):
    assert_same(take(data, 8, batch=8), take(data, 2, batch=32))
    assert_same(take(data, 8, batch=8), take(data, 64, batch=1))


def test_seeds_and_epochs_differ(data):
    size = data.train.size
    base = take(data, 1, batch=16)
    assert np.all(base["weight"] == 1)
    assert not np.array_equal(base["inputs"], take(data, 1, batch=16, seed=4)["inputs"])
    assert not np.array_equal(base["inputs"], take(data, 1, batch=16, first=size)["inputs"])


def test_epoch_holds_every_example_once_across_batches():
    data = open_data(DigitsConfig(augment="none", image_size=None, **GREY), seed=0)
    size = data.train.size
    stream = take(data, 3 * size // 100 + 1, batch=100)["inputs"].reshape(-1, 64)
    (whole,) = make_eval_batches(data, batch=size, split="train")
    stored = np.unique(whole["inputs"].numpy().reshape(-1, 64), axis=0)
    for epoch in range(3):
        np.testing.assert_array_equal(np.unique(stream[epoch * size : (epoch + 1) * size], axis=0), stored)


@pytest.mark.parametrize("batch", [1, 7, 10, 64])
def test_evaluation_counts_every_example_once(batch):
    config = SyntheticConfig(augment="none", image_size=4, **GREY, channels=1, **FOUR)
    for split, size in (("train", 21), ("test", 10)):
        whole = join(make_eval_batches(open_data(config, 0), batch=batch, split=split))
        assert whole["weight"].tolist() == [1.0] * size + [0.0] * (-size % batch)
        assert len(np.unique(whole["inputs"][:size].reshape(size, -1), axis=0)) == size


def test_evaluation_does_not_augment():
    config = SyntheticConfig(augment="crop_flip", image_size=4, **GREY, channels=1, **FOUR)
    element = next(iter(make_eval_batches(open_data(config, 0), batch=10)))
    stored, labels = open_data(config, 0).test.read(tf.range(10, dtype=tf.int64))
    np.testing.assert_allclose(element["inputs"], (stored.numpy() / 255 - 0.3) / 0.4, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(element["targets"], labels)


def test_replicas_share_each_batch_in_order(data):
    cpu = tf.config.list_logical_devices("CPU")[0].name
    strategy = tf.distribute.MirroredStrategy([cpu])

    @tf.function
    def two(iterator):
        return next(iterator)["inputs"], next(iterator)["inputs"]

    iterator = iter(strategy.experimental_distribute_dataset(make_train_batches(data, batch=8, first=5, seed=3)))
    np.testing.assert_array_equal(np.concatenate(two(iterator)), take(data, 2, batch=8, first=5)["inputs"])


ITERATE = """
from accumtrain.devices.config import CpuConfig
from accumtrain.process import environment
environment.prepare(CpuConfig())
import numpy as np, tensorflow as tf
from accumtrain.data.config import NpzConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
images = np.zeros([2000, 64, 64], np.uint8)
images[:, 0] = 255
np.savez("mine.npz", images=images, labels=np.arange(2000) % 2)
data = open_data(NpzConfig(path="mine.npz"), seed=0)
before = tf.config.experimental.get_memory_info("CPU:0")["current"]
tf.config.experimental.reset_memory_stats("CPU:0")
for batches in (make_train_batches(data, batch=4, first=0, seed=0), make_eval_batches(data, batch=4)):
    next(iter(batches))
print(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before < 2**20)
"""


def test_arrays_are_not_copied_to_iterate_over_them(tmp_path):
    """They take 8 MB here."""
    assert output_of("-c", ITERATE, cwd=tmp_path) == "True\n"
