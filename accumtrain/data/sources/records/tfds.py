"""data=tfds: prepared data sets of tensorflow-datasets, in both of its file formats, and their download."""

from __future__ import annotations

import difflib
import sys
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorflow_datasets as tfds
from google.protobuf.json_format import ParseError

from accumtrain.console import say
from accumtrain.data.config import TfdsConfig
from accumtrain.data.source import Source, Wanted
from accumtrain.data.sources.records.shards import ArrayRecordShards, ShardRange, Shards, TfrecordShards
from accumtrain.data.sources.records.tfrecord import RecordSplit
from accumtrain.errors import DataError

_FORMATS: dict[str, type[Shards]] = {"tfrecord": TfrecordShards, "array_record": ArrayRecordShards}


def open_tfds(config: TfdsConfig, wanted: Wanted) -> Source:
    """Return two splits of a prepared data set. data.download=true prepares it first.

    Raises:
        DataError: The data set is not prepared and can't be downloaded, has another format, or lacks the configured
            splits and features.
    """
    builder = _open_builder(config)
    image, num_classes, class_names = _find_features(config, dict(builder.info.features.items()))
    train = _open(config, builder, "data.train_split", config.train_split, image, num_classes)
    test = _open(config, builder, "data.test_split", config.test_split, image, num_classes)
    if train.shape is None and config.image_size is None:
        train.shape = test.shape = train.inspect_first().shape
    fingerprint = {
        "data.version": builder.info.full_name,
        "data.train.shards": train.shards.digest(),
        "data.test.shards": test.shards.digest(),
    }
    return Source(train, test, num_classes, class_names=class_names, fingerprint=fingerprint)


def _open_builder(config: TfdsConfig) -> Any:
    try:
        # tfds.builder would run the data set's code first and may ask the network for it.
        return tfds.core.read_only_builder.builder_from_files(config.name, data_dir=config.dir)
    except tfds.core.DatasetNotFoundError as error:
        _check_known(config)
        if not config.download:
            raise DataError(_describe_preparation(config)) from error
        _download(config)
        return tfds.core.read_only_builder.builder_from_files(config.name, data_dir=config.dir)
    except (OSError, ValueError, TypeError, ParseError) as error:
        raise DataError(
            f"data.name={config.name}: what describes the data set in {_find_directory(config)} can't be read "
            f"({error}): prepare it again"
        ) from error


def _find_features(config: TfdsConfig, features: dict[str, Any]) -> tuple[Any, int, list[str]]:
    """Return the feature of the image, the number of classes, and their names; empty without names."""
    image, label = features.get(config.image_feature), features.get(config.label_feature)
    if not isinstance(image, tfds.features.Image):
        remedy = _list_fitting(features, tfds.features.Image) or "it has no Image at all, so choose another data.name"
        raise DataError(f"{config.name} has no Image called data.image_feature={config.image_feature}: {remedy}")
    if image.dtype != np.uint8:
        raise DataError(
            f"{config.name} has images of {np.dtype(image.dtype).name}: only 8 bits a channel can be read, so choose "
            "another data.name"
        )
    known = label.num_classes if isinstance(label, tfds.features.ClassLabel) else None
    count = known or config.num_classes
    if known and config.num_classes not in (None, known):
        raise DataError(
            f"data.num_classes={config.num_classes}: the ClassLabel {config.label_feature} of {config.name} has "
            f"{known} classes; leave it out"
        )
    if label is None or count is None:
        others = (f"{name} ({type(other).__name__})" for name, other in features.items() if other is not image)
        any_other = f"set it to one of {', '.join(others)}, and data.num_classes=<number>"
        raise DataError(
            f"{config.name} has no ClassLabel called data.label_feature={config.label_feature}: "
            f"{_list_fitting(features, tfds.features.ClassLabel) or any_other}"
        )
    return image, count, config.class_names or (_list_class_names(label) if known else [])


def _list_fitting(features: dict[str, Any], kind: type) -> str:
    """Return the remedy for a feature of another kind; empty if there is none."""
    fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
    return f"set it to one of {', '.join(fitting)}" if fitting else ""


def _list_class_names(label: Any) -> list[str]:
    """Return the names of the classes; nothing if the data set only numbers them."""
    names = list(label.names)
    return [] if names == [str(number) for number in range(len(names))] else names


def _open(config: TfdsConfig, builder: Any, key: str, split: str, image: Any, num_classes: int) -> RecordSplit:
    file_format = builder.info.file_format.value
    if file_format not in _FORMATS:
        raise DataError(f"{config.name} is prepared as {file_format}: prepare it as one of {', '.join(_FORMATS)}")
    try:
        instructions = builder.info.splits[split].file_instructions
    except (KeyError, ValueError) as error:
        have = ", ".join(builder.info.splits)
        raise DataError(
            f"{key}={split} is not a split of {config.name}: it has {have}, and slices as in {have.split(',')[0]}[:90%]"
        ) from error
    pieces = [ShardRange(part.filename, part.skip, part.take) for part in instructions]
    if not pieces:
        raise DataError(f"{key}={split} of {config.name} is empty: choose a larger slice")
    height, width, channels = image.shape
    return RecordSplit(
        _FORMATS[file_format](pieces),
        config,
        num_classes=num_classes,
        shape=(height, width, channels) if height and width and channels else None,
        channels=channels or 3,
    )


# ---- download ----


def _find_directory(config: TfdsConfig) -> str:
    return str(config.dir or tfds.core.constants.DATA_DIR)


def _check_known(config: TfdsConfig) -> None:
    """Raise DataError if tensorflow-datasets has no data set of that name."""
    known = tfds.list_builders(with_community_datasets=False)
    name = _without_config(config.name)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        raise DataError(
            f"data.name={config.name} is not prepared in {_find_directory(config)}. "
            "tensorflow-datasets has no data set of that name"
            + (f"; did you mean {', '.join(near)}?" if near else ": see https://www.tensorflow.org/datasets/catalog")
        )


def _without_config(name: str) -> str:
    """Return the name of a data set without its config and version."""
    return name.split("/")[0].split(":")[0]


def _describe_preparation(config: TfdsConfig) -> str:
    where = _find_directory(config)
    code = (
        f"import tensorflow_datasets as tfds; tfds.builder({config.name!r}, data_dir={where!r}).download_and_prepare()"
    )
    missing = f"data.name={config.name} is not prepared in {where}. "
    try:
        by_hand = tfds.builder_cls(_without_config(config.name)).MANUAL_DOWNLOAD_INSTRUCTIONS
    except ImportError:  # of a package that this data set needs: data.download=true names it
        by_hand = None
    if by_hand:
        return (
            f"{missing}Its files must be fetched by hand into {where}/downloads/manual. tensorflow-datasets says: "
            f"{' '.join(by_hand.split())} Then add data.download=true, which prepares it"
        )
    return f'{missing}Add data.download=true, or prepare it once with: python -c "{code}"'


def _download(config: TfdsConfig) -> None:
    """Download and prepare the data set.

    Raises:
        DataError: There is no network, the disk is full, or files or packages are missing.
    """
    where = _find_directory(config)
    say(f"downloading {config.name} into {where}; without a network this is tried for some minutes")
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        tfds.builder(config.name, data_dir=where).download_and_prepare()
    except Exception as error:  # a data set has code of its own, whose errors are of any type
        raise DataError(
            f"data.download=true: {config.name} can't be downloaded and prepared in {where}: {_find_reason(error)}. Or "
            "prepare it on another machine, copy that folder, and give it as data.dir"
        ) from error


def _find_reason(error: Exception) -> str:
    request = getattr(error, "request", None)  # of an error of requests, without a response if nobody answered
    if request is not None and getattr(error, "response", None) is None:
        return f"there is no connection to {urlsplit(request.url).hostname}; give this machine a network"
    text = " ".join(str(error).split()).rstrip(".")
    # an AssertionError says the remedy
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
