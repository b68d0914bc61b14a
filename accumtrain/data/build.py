"""The closed registry of data sources."""

from __future__ import annotations

from accumtrain.config import DataConfig, FolderConfig, SyntheticConfig, TfdsConfig, TfrecordConfig
from accumtrain.data.digits import NUM_CLASSES, open_digits
from accumtrain.data.folder import open_folder
from accumtrain.data.preprocess import make_preprocess
from accumtrain.data.source import Data, Split
from accumtrain.data.synthetic import open_synthetic
from accumtrain.data.tfds import open_tfds
from accumtrain.data.tfrecord import open_tfrecord


def open_data(config: DataConfig, seed: int) -> Data:
    """Opens the data set that `config` names. `seed` decides the images of `synthetic`, nothing else.

    Raises:
        ConfigError: Settings that contradict each other or the images.
        DataError: Data that is missing, not prepared, corrupt, or not as described.
    """
    train, test, num_classes, notes = _open_source(config, seed)
    preprocess = make_preprocess(config, channels=train.channels, white=train.white)
    size = config.image_size
    shape = train.image_shape if size is None else (size, size, train.channels)
    assert shape is not None, "a source whose images keep their size has one shape"
    return Data(train, test, num_classes, shape, preprocess, notes)


def _open_source(config: DataConfig, seed: int) -> tuple[Split, Split, int, list[str]]:
    if isinstance(config, SyntheticConfig):
        return *open_synthetic(config, seed), config.num_classes, []
    if isinstance(config, TfdsConfig):
        return *open_tfds(config), []
    if isinstance(config, FolderConfig):
        return open_folder(config)
    if isinstance(config, TfrecordConfig):
        return *open_tfrecord(config), config.num_classes, []
    return *open_digits(), NUM_CLASSES, []
