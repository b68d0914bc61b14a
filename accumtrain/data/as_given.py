"""Examples that reach the model as they are given: nested arrays in memory, or a split of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import google_crc32c
import numpy as np
import tensorflow as tf

from accumtrain.data.fingerprint import digest
from accumtrain.data.holdout import hold_out_evenly
from accumtrain.data.preprocess import Preprocess
from accumtrain.data.source import Data, Split
from accumtrain.errors import DataError

CHUNK = 2**20  # values of an array that are looked at together


class GivenSplit(Split):
    """Nested arrays in memory.

    Args:
        inputs: what the model takes: an array [size, ...], or a structure of such arrays.
        targets: what the loss takes beside the outputs: such a structure, too.
    """

    image_shape = None
    channels = 1

    def __init__(self, inputs: Any, targets: Any) -> None:
        arrays = tf.nest.flatten((inputs, targets))
        self.size = len(arrays[0])
        self.content = digest(f"{each.shape} {each.dtype} {_checksum(each)}" for each in arrays)
        with tf.device("CPU"):
            self._examples = tf.nest.map_structure(tf.constant, (inputs, targets))

    def read(self, index: tf.Tensor) -> tuple[Any, Any]:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, index), self._examples)


def _checksum(array: np.ndarray) -> int:
    checksum, flat = 0, array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        checksum = google_crc32c.extend(checksum, flat[start : start + CHUNK].tobytes())
    return checksum


@dataclass(frozen=True)
class AsGiven(Preprocess):
    """No preparation."""

    augment: str = "none"
    image_size: tuple[int, int] | None = None
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    white: int = 255

    def example(
        self, image: tf.Tensor, key: tf.Tensor, orientation: tf.Tensor | None = None, *, channels: int, training: bool
    ) -> tf.Tensor:
        return image

    def batch(self, images: Any, key: tf.Tensor, *, training: bool) -> Any:
        return images


@dataclass(frozen=True)
class GivenData(Data):
    """Examples of any structure, without preparation."""

    fills_last_batch: ClassVar[bool] = False  # a loss over a whole batch would count the copies

    @property
    def facts(self) -> str:
        return f"{self.sizes} examples"

    def shaped(self, batch: dict[str, Any], size: int) -> dict[str, Any]:
        def shaped(tensor: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tensor, [size, *tensor.shape[1:]])

        return {name: tf.nest.map_structure(shaped, batch[name]) for name in ("image", "label", "weight")}


def given_data(train: Split, val: Split, notes: Sequence[str] = ()) -> GivenData:
    """Data of two splits, to train and to validate on.

    What a continued run must find again are the sizes, and the content of arrays.
    """
    splits = {"train": train, "val": val}
    sizes = {f"data.{name}.examples": split.size for name, split in splits.items()}
    contents = {f"data.{name}.arrays": each.content for name, each in splits.items() if isinstance(each, GivenSplit)}
    return GivenData(
        train,
        None,
        val=val,
        num_classes=0,
        image_shape=(),
        preprocess=AsGiven(),
        notes=list(notes),
        fingerprint=sizes | contents,
    )


def hold_out(examples: Any, share: float) -> tuple[Any, Any]:
    """Splits a structure of arrays [size, ...]: the examples to train on, and a share of them, evenly spaced, to test.

    Raises:
        DataError: there are fewer than two.
    """
    size = len(tf.nest.flatten(examples)[0])
    if size < 2:
        raise DataError(f"the data holds {size} example(s): it takes two, to train and to test, or validation_data")
    test = np.zeros(size, bool)
    test[hold_out_evenly(size, share)] = True
    train_part, test_part = (
        tf.nest.map_structure(lambda array, chosen=chosen: array[chosen], examples) for chosen in (~test, test)
    )
    return train_part, test_part
