"""From a source's configuration to an opened data set."""

from __future__ import annotations

from accumtrain.data.fingerprint import fingerprint_of
from accumtrain.data.holdout import with_validation
from accumtrain.data.mix import Mix
from accumtrain.data.preprocess import make_preprocess
from accumtrain.data.source import SPLIT_WORDS, Data, Source
from accumtrain.errors import DataError
from accumtrain.kinds.sources import SOURCES, DataConfig


def open_data(config: DataConfig, seed: int) -> Data:
    """Opens the data set that `config` names. `seed` decides the images of sources that make their own.

    Raises:
        ConfigError: Settings that contradict each other or the images.
        DataError: Data that is missing, not prepared, corrupt, or not as described.
    """
    source: Source | Data = SOURCES.build(config, seed)
    if isinstance(source, Data):  # examples that need no preparation
        return source
    source = with_validation(source, config)
    train = source.train
    for name, other in source.splits.items():
        if train.white != other.white:
            raise DataError(
                f"data={config.kind}: pixels of 1.0 are {train.white} in the training split and {other.white} in the "
                f"{SPLIT_WORDS[name]} split; both splits must mean the same"
            )
    preprocess = make_preprocess(config, channels=train.channels, white=train.white)
    shape = train.image_shape if config.pixels is None else (*config.pixels, train.channels)
    assert shape is not None, "a source whose images keep their size has one shape"
    return Data(
        train=train,
        test=source.test,
        val=source.val,
        num_classes=source.num_classes,
        image_shape=shape,
        preprocess=preprocess,
        notes=source.notes,
        class_names=source.class_names,
        fingerprint=fingerprint_of(source),
        mix=Mix(config.mixup, config.cutmix),
        balanced=config.sampling == "balanced",
    )
