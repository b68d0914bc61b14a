"""Small images on disk, and the same examples as tensorflow-datasets prepares them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data import pipeline
from accumtrain.data.config import DataConfig, FolderConfig, TfdsConfig, TfrecordConfig
from accumtrain.data.open_data import explain_input_error, open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.source import Dataset
from accumtrain.errors import DataError

PLAIN: dict[str, Any] = {"augment": "none", "image_size": None, "mean": [0.0], "std": [1.0]}
FEATURES = {"image_feature": "image", "label_feature": "label"}


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep caches out of the home directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is small enough to be read into memory, so every image is decoded while training."""
    monkeypatch.setattr(pipeline, "RESIDENT_BYTES", 0)


def picture(number: int, height: int = 6, width: int = 6) -> np.ndarray:
    """uint8 [height, width, 3], different for each number; its first red pixel is the number."""
    image = np.random.default_rng(number).integers(0, 256, [height, width, 3], np.uint8)
    image[0, 0, 0] = number
    return image


def png(number: int, height: int = 6, width: int = 6) -> bytes:
    return tf.io.encode_png(picture(number, height, width)).numpy()


def flip_bit(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def write_records(path: Path, *payloads: bytes) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)


def assert_refused(config: DataConfig, message: str) -> None:
    """Opening the data ends with a DataError of these words."""
    with pytest.raises(DataError, match=message):
        open_data(config, seed=0)


def join(batches: tf.data.Dataset) -> dict[str, np.ndarray]:
    """Return all batches, put together."""
    elements = list(batches.as_numpy_iterator())
    return {key: np.concatenate([element[key] for element in elements]) for key in elements[0]}


def read_pictures(data: Dataset, split: str) -> dict[int, int]:
    """Return the label of each picture of a split by its number, in the order of the split."""
    batch = join(make_eval_batches(data, batch=data.splits[split].size, split=split))
    found = np.rint(batch["inputs"][:, 0, 0, 0] * 255).astype(int).tolist()
    return dict(zip(found, batch["targets"].tolist(), strict=True))


def read_explained(data: Dataset, batches: tf.data.Dataset) -> None:
    """Read all batches. Raise the error of a running pipeline in the user's words."""
    with pytest.raises(tf.errors.OpError) as failure:
        list(batches)
    explained = explain_input_error(failure.value, data)
    assert explained is not None
    raise explained


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write `count` PNG pictures for each class, numbered in the order of the sorted paths."""

    def make(name: str = "photos", classes: tuple[str, ...] = ("ant", "bee"), count: int = 5, **size: int) -> Path:
        for label, kind in enumerate(classes):
            (tmp_path / name / kind).mkdir(parents=True)
            for number in range(count):
                (tmp_path / name / kind / f"{number:02}.png").write_bytes(png(label * count + number, **size))
        return tmp_path / name

    return make


@pytest.fixture
def folder_config() -> Callable[..., FolderConfig]:
    return lambda path, **changes: FolderConfig(
        **{**PLAIN, "val_fraction": 0.0, **changes}, path=str(path), test_fraction=0.2
    )


Value = bytes | int | float


def example(features: dict[str, Value | list[Value]]) -> bytes:
    """A serialised tf.train.Example with a value, or several, for each feature."""

    def feature(value: Value | list[Value]) -> tf.train.Feature:
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    pairs = {name: feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=pairs)).SerializeToString()


@pytest.fixture
def make_shards(tmp_path: Path) -> Callable[..., list[Path]]:
    """Write TFRecord shards with `counts` examples each; labels go round 0..2, pictures are numbered on."""

    def make(prefix: str, counts: tuple[int, ...] = (4, 0, 3), **changes: bytes | int) -> list[Path]:
        numbers = itertools.count()
        paths = [tmp_path / f"{prefix}-{shard}" for shard in range(len(counts))]
        for path, count in zip(paths, counts, strict=True):
            own = itertools.islice(numbers, count)
            write_records(path, *(example({"image": png(each), "label": each % 3, **changes}) for each in own))
        return paths

    return make


@pytest.fixture
def shards(make_shards: Callable[..., list[Path]]) -> list[Path]:
    """The shards to train on. There are as many to test on."""
    make_shards("test")
    return make_shards("train")


@pytest.fixture
def tfrecord_config(tmp_path: Path) -> Callable[..., TfrecordConfig]:
    def make(**changes: object) -> TfrecordConfig:
        own = {"path": str(tmp_path / "train-*"), "test_path": str(tmp_path / "test-*"), "num_classes": 3}
        return TfrecordConfig(**{**PLAIN, **FEATURES, **own, **changes})

    return make


@pytest.fixture(scope="session")
def tiny_pictures() -> Any:
    """A data set of tensorflow-datasets: 23 training and 7 test pictures of three classes, and other labels."""
    import tensorflow_datasets as tfds

    class TinyPictures(tfds.core.GeneratorBasedBuilder):
        """Numbered pictures."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            features = {
                "image": tfds.features.Image(shape=(6, 6, 3)),
                "label": tfds.features.ClassLabel(num_classes=3),
                "note": tfds.features.Text(),
                "number": np.int64,
                "name": tfds.features.Text(),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, _: object) -> dict[str, Any]:
            return {"train": self._generate_examples(range(23)), "test": self._generate_examples(range(100, 107))}

        def _generate_examples(self, numbers: range) -> Iterator[tuple[int, dict[str, Any]]]:
            for number in numbers:
                labels = {"label": number % 3, "name": ("ant", "bee", "cat")[number % 3], "number": number % 3}
                yield number, {"image": picture(number), "note": "a picture", **labels}

    return TinyPictures


@pytest.fixture
def prepare_tfds(tiny_pictures: Any, tmp_path: Path) -> Callable[..., TfdsConfig]:
    """Prepare the tiny data set in a file format, three shards a split. Return the config that reads it."""
    import tensorflow_datasets as tfds

    def prepare(file_format: str, **changes: object) -> TfdsConfig:
        directory = tmp_path / file_format
        settings = tfds.download.DownloadConfig(num_shards=3)
        tiny_pictures(data_dir=directory, file_format=file_format).download_and_prepare(download_config=settings)
        own = {"name": "tiny_pictures", "dir": str(directory), "train_split": "train", "test_split": "test"}
        return TfdsConfig(**{**PLAIN, **FEATURES, **own, **changes})

    return prepare
