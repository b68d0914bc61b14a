"""The examples to validate on: those that choose the best state and when to stop, so that the test examples don't."""

from __future__ import annotations

from dataclasses import replace

from accumtrain.data.part import hold_out
from accumtrain.data.source import Source
from accumtrain.errors import ConfigError, DataError
from accumtrain.kinds.sources import DataConfig


def with_validation(source: Source, config: DataConfig) -> Source:
    """The source with a validation split: its own, or `data.val_fraction` of the training examples.

    Raises:
        ConfigError: the source has one of its own, and `data.val_fraction` asks for another.
        DataError: no class has two training examples.
    """
    if source.val is not None:
        if config.val_fraction:
            raise ConfigError(
                f"data.val_fraction={config.val_fraction}: the data has {source.val.size:,} validation examples of its "
                "own; leave it out"
            )
        return source
    fraction = config.val_share
    if not fraction:
        return source
    train, val = hold_out(source.train, fraction)
    if not val.size:
        raise DataError(
            f"data.val_fraction={fraction:g}: no class has the two training examples that it takes to train and to "
            "validate on; add some, or set data.val_fraction=0 to validate on the test examples"
        )
    note = f"{val.size:,} training examples are held out to validate on (data.val_fraction={fraction:g})"
    return replace(source, train=train, val=val, notes=[*source.notes, note])
