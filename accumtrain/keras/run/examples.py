"""The examples that `accumtrain.fit` is given, as data of the engine. They reach the model as they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.console import format_things
from accumtrain.data.holdout import hold_out_evenly
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.source import Dataset, Split, Stream
from accumtrain.errors import ConfigError, DataError
from accumtrain.keras.run.arrays import as_arrays, hash_arrays, length_of, weigh_classes
from accumtrain.keras.run.streams import open_stream

BATCH_SIZE = 32  # examples of an update, unless they come in batches of another size


def take_data(
    model: keras.Model,
    data: Any,
    validation_data: Any,
    validation_split: float,
    *,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    class_weight: Mapping[int, float] | None = None,
) -> GivenData:
    """Return data of the examples that `accumtrain.fit` is given.

    Targets become a tuple of what the loss takes and, if there are any, the weights of the examples.

    Raises:
        DataError: it is none of the kinds that `accumtrain.fit` takes, or the arrays differ in length.
        ConfigError: steps_per_epoch is no number of updates, or not that of a stream. Or class_weight holds a value
            that is no weight, or is not for such data.
    """
    notes: list[str] = []
    stream = open_stream(model, data)
    own = None if stream is None else stream.batch
    batch_size = batch_size or own or BATCH_SIZE
    if stream is not None:
        stream.set_epoch(batch_size, steps_per_epoch)
        notes.append(f"the examples come in the order of {stream.name}")
    elif steps_per_epoch is not None:
        raise ConfigError(
            f"steps_per_epoch={steps_per_epoch}: an epoch of arrays or of a Split is a pass over them; leave it out, "
            "and give a fraction of an epoch as epochs"
        )
    if class_weight is not None and (stream is not None or isinstance(data, Split)):
        kind = "a Split" if stream is None else stream.name
        raise ConfigError(
            f"class_weight={class_weight!r}: it is for arrays, and data is {kind}; leave it out, and give arrays "
            "(x, y), or the weight of each example, (x, y, sample_weight)"
        )
    if validation_data is not None:
        train = stream or _as_split(model, data, class_weight=class_weight)
        val = _as_split_to_evaluate(model, validation_data)
        _check_alike(train, val)
        return given_data(train, val, notes, batch_size)
    if stream is not None or isinstance(data, Split):
        kind = "a Split" if stream is None else stream.name
        raise DataError(f"validation_data is missing: {kind} can't be divided; give a second one to evaluate on")
    if not (isinstance(validation_split, (int, float, np.floating)) and 0 < validation_split < 1):
        raise DataError(f"validation_split={validation_split}: must be above 0 and below 1, or give validation_data")
    own_part, held_out = hold_out(as_arrays(model, data), validation_split)
    val_split = InMemorySplit(*held_out)
    notes.append(
        f"held out to evaluate on, evenly spaced: {format_things(val_split.size, 'example')} (validation_split)"
    )
    return given_data(InMemorySplit(*weigh_classes(own_part, class_weight)), val_split, notes, batch_size)


def given_data(train: Split, val: Split, notes: Sequence[str] = (), batch_size: int = BATCH_SIZE) -> GivenData:
    """Return data of two splits, to train and to validate on.

    A continued run must find the same sizes, and the same content of arrays.
    """
    splits = {"train": train, "val": val}
    sizes = {f"data.{name}.examples": split.size for name, split in splits.items()}
    contents = {f"data.{name}.arrays": own.content for name, own in splits.items() if isinstance(own, InMemorySplit)}
    return GivenData(
        train,
        None,
        val=val,
        num_classes=0,
        inputs=Arrays(()),
        notes=list(notes),
        fingerprint=sizes | contents,
        batch_size=batch_size,
    )


def hold_out(examples: Any, share: float) -> tuple[Any, Any]:
    """Split a structure of arrays [size, ...] into the examples to train on, and an evenly spaced share to test.

    Raises:
        DataError: there are fewer than two.
    """
    size = len(tf.nest.flatten(examples)[0])
    if size < 2:
        raise DataError(
            f"the data holds {size} example(s): it takes two, to train and to test; add some, or give validation_data"
        )
    test = np.zeros(size, bool)
    test[hold_out_evenly(size, share)] = True
    train_part, test_part = (tf.nest.map_structure(itemgetter(chosen), examples) for chosen in (~test, test))
    return train_part, test_part


def examples_of(split: Split, count: int) -> tuple[Any, Any]:
    """Return up to `count` examples of a split, as nested tensors: evenly spaced, or the first of a stream."""
    count = min(count, split.size)
    last = count - 1 if isinstance(split, Stream) else split.size - 1
    return split.read(tf.cast(tf.linspace(0, last, count), tf.int64))


def _check_alike(train: Split, test: Split) -> None:
    """Raise DataError unless examples of both are of the same structure and shapes."""
    shapes = []
    for split in (train, test):
        inputs, (targets, *_) = examples_of(split, 1)
        shapes.append(tf.nest.map_structure(lambda tensor: str(tensor.shape[1:].as_list()), (inputs, targets)))
    of_train, of_test = shapes
    if of_train != of_test:  # the order of keys does not matter
        shown = [str(each).replace("'", "") for each in shapes]
        raise DataError(f"inputs and targets of an example have shapes {shown[0]}, in validation_data {shown[1]}")


def _as_split(
    model: keras.Model, data: Any, name: str = "data", class_weight: Mapping[int, float] | None = None
) -> Split:
    if isinstance(data, Split):
        return OwnSplit(data)
    return InMemorySplit(*weigh_classes(as_arrays(model, data, name), class_weight))


def _as_split_to_evaluate(model: keras.Model, data: Any) -> Split:
    stream = open_stream(model, data, "validation_data")
    if stream is None:
        return _as_split(model, data, "validation_data")
    stream.count()
    return stream


# --- splits and data sets ---------------------------------------------------------------------------------------------


class InMemorySplit(Split):
    """Nested arrays in memory.

    Args:
        inputs: an array [size, ...] for the model, or a structure of such arrays.
        targets: such a structure, for the loss.
    """

    shape = None
    channels = 1

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.size = length_of(inputs)
        self.content = hash_arrays((inputs, targets))
        with tf.device("CPU"):
            self._examples = tf.nest.map_structure(tf.constant, (inputs, targets))

    def read(self, index: tf.Tensor) -> tuple[Any, Any]:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, index), self._examples)


class OwnSplit(Split):
    """A split of the user's own, whose `read` returns inputs and targets without the weights."""

    def __init__(self, split: Split):
        if type(split).weights is not Split.weights:
            raise DataError(
                f"{type(split).__name__} has weights, which accumtrain.fit takes with the arrays only: give "
                "(x, y, sample_weight), or a Split without `weights`"
            )
        self.size, self.shape, self.channels, self._split = split.size, None, 1, split

    def read(self, index: tf.Tensor) -> tuple[Any, Any]:
        inputs, targets = self._split.read(index)
        return inputs, (targets,)


@dataclass(frozen=True, kw_only=True)
class GivenData(Dataset):
    """Examples of any structure, without preparation.

    Attributes:
        batch_size: examples of an update.
    """

    batch_size: int
    fills_last_batch: bool = False  # a loss over a whole batch would count the copies
