"""Downloads and prepares a data set by tensorflow-datasets, or says how it is done."""

from __future__ import annotations

import difflib
import sys
from urllib.parse import urlsplit

from accumtrain.console import say
from accumtrain.errors import DataError
from accumtrain.kinds.sources import TfdsConfig


def directory(config: TfdsConfig) -> str:
    """The folder of prepared data sets."""
    import tensorflow_datasets as tfds

    return str(config.dir or tfds.core.constants.DATA_DIR)


def check_known(config: TfdsConfig) -> None:
    """Raises DataError if tensorflow-datasets has no data set of that name."""
    import tensorflow_datasets as tfds

    known = tfds.list_builders(with_community_datasets=False)
    name = config.name.split("/")[0].split(":")[0]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        raise DataError(
            f"data.name={config.name} is not prepared in {directory(config)}. "
            "tensorflow-datasets has no data set of that name"
            + (f"; did you mean {', '.join(near)}?" if near else ": see https://www.tensorflow.org/datasets/catalog")
        )


def how_to_prepare(config: TfdsConfig) -> str:
    """What to tell of a data set that is not prepared."""
    where = directory(config)
    code = (
        f"import tensorflow_datasets as tfds; tfds.builder({config.name!r}, data_dir={where!r}).download_and_prepare()"
    )
    return (
        f"data.name={config.name} is not prepared in {where}. "
        f'Add data.download=true, or prepare it once with: python -c "{code}"'
    )


def download(config: TfdsConfig) -> None:
    """Downloads and prepares the data set.

    Raises:
        DataError: There is no network, the disk is full, or it takes files or packages that are not here.
    """
    import tensorflow_datasets as tfds

    where = directory(config)
    say(f"downloading {config.name} into {where}; without a network this is tried for some minutes")
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        tfds.builder(config.name, data_dir=where).download_and_prepare()
    except Exception as error:  # each data set has code of its own, whose errors are of any type
        raise DataError(
            f"data.download=true: {config.name} can't be downloaded and prepared in {where}: {_reason(error)}. Or "
            "prepare it on another machine, copy that folder, and give it as data.dir"
        ) from error


def _reason(error: Exception) -> str:
    request = getattr(error, "request", None)  # of an error of requests, without a response if nobody answered
    if request is not None and getattr(error, "response", None) is None:
        return f"there is no connection to {urlsplit(request.url).hostname}; give this machine a network"
    text = " ".join(str(error).split()).rstrip(".")
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"  # says what is to be done
