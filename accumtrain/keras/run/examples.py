"""The examples that `accumtrain.fit` is given, as data of the engine. They reach the model as they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

import google_crc32c
import keras
import numpy as np
import tensorflow as tf

from accumtrain.data.holdout import hold_out_evenly
from accumtrain.data.preprocess import Preprocess
from accumtrain.data.source import Dataset, Split, hash_texts
from accumtrain.errors import DataError, first_line

CHUNK = 1024  # examples read at a time
CHECKSUM_CHUNK = 2**20  # values of an array that are summed up at a time
TEXT_KINDS = "SU"  # of numpy.dtype


def take_data(model: keras.Model, data: Any, validation_data: Any, validation_split: float) -> GivenData:
    """Return data of the examples that `accumtrain.fit` is given.

    Targets become a tuple of what the loss takes and, if there are any, the weights of the examples.

    Raises:
        DataError: it is none of the kinds that `accumtrain.fit` takes, or the arrays differ in length.
    """
    notes: list[str] = []
    if validation_data is not None:
        train, test = _as_split(model, data, notes), _as_split(model, validation_data, notes)
        _check_alike(train, test)
        return given_data(train, test, notes)
    if isinstance(data, Split):
        raise DataError("validation_data is missing: a Split can't be divided; give a second one to evaluate on")
    if not (isinstance(validation_split, (int, float, np.floating)) and 0 < validation_split < 1):
        raise DataError(f"validation_split={validation_split}: must be above 0 and below 1, or give validation_data")
    train, test = hold_out(_as_arrays(model, data, notes), validation_split)
    val_split = InMemorySplit(*test)
    notes.append(f"{val_split.size:,} examples, evenly spaced, are held out to evaluate on (validation_split)")
    return given_data(InMemorySplit(*train), val_split, notes)


def given_data(train: Split, val: Split, notes: Sequence[str] = ()) -> GivenData:
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
        image_shape=(),
        preprocess=NoPreprocess(augment="none", image_size=None, mean=[], std=[], white=255),
        notes=list(notes),
        fingerprint=sizes | contents,
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


def _check_alike(train: Split, test: Split) -> None:
    """Raise DataError unless examples of both are of the same structure and shapes."""
    shown = []
    for split in (train, test):
        inputs, (targets, *_) = split.read(tf.zeros([1], tf.int64))
        shapes = tf.nest.map_structure(lambda tensor: str(tensor.shape[1:].as_list()), (inputs, targets))
        shown.append(str(shapes).replace("'", ""))
    of_train, of_test = shown
    if of_train != of_test:
        raise DataError(f"inputs and targets of an example have shapes {of_train}, in validation_data {of_test}")


def _as_split(model: keras.Model, data: Any, notes: list[str]) -> Split:
    return OwnSplit(data) if isinstance(data, Split) else InMemorySplit(*_as_arrays(model, data, notes))


def _as_arrays(model: keras.Model, data: Any, notes: list[str]) -> tuple[Any, Any]:
    """Return inputs, and targets with the weights if there are any, as arrays of one length."""
    if isinstance(data, tf.data.Dataset):
        data = _read_all(model, data, notes)
    if not (isinstance(data, (tuple, list)) and len(data) in (2, 3)):
        raise DataError(
            f"data is a {type(data).__name__}: give (x, y), (x, y, sample_weight), a tf.data.Dataset of such examples, "
            "or an accumtrain.Split"
        )
    x, y, *weights = data
    if weights and weights[0] is None:
        weights = []
    # tf.data would take a list for one tensor
    arrays = tf.nest.map_structure(_as_array, keras.tree.lists_to_tuples((x, (y, *weights))))
    if _have_text(arrays[1]):
        raise DataError("the targets are text: number them, as numpy.unique(y, return_inverse=True)[1] does")
    if _have_text(arrays[0]) and not _takes_text(model):
        raise DataError(f"the inputs are text, and {model.name} takes numbers: let it begin with a TextVectorization")
    sizes = {len(array) for array in tf.nest.flatten(arrays)}
    if len(sizes) != 1:
        raise DataError(f"the arrays hold {', '.join(map(str, sorted(sizes)))} examples: give as many of each")
    if sizes == {0}:
        raise DataError("the arrays are empty: give at least two examples")
    return arrays


def _have_text(arrays: Any) -> bool:
    return any(array.dtype.kind in TEXT_KINDS for array in tf.nest.flatten(arrays))


def _takes_text(model: keras.Model) -> bool:
    """Return whether a model has an input of text, or is not a graph of layers and may have one."""
    inputs = getattr(model, "inputs", None)
    return not inputs or any(tensor.dtype == "string" for tensor in inputs)


def _as_array(values: Any) -> np.ndarray:
    array = np.asarray(values)
    for kind in (bytes, str):  # as a tf.data.Dataset gives text
        if array.dtype == object and array.size and all(isinstance(item, kind) for item in array.flat):
            array = array.astype(kind)
    if array.ndim < 1 or array.dtype == object:
        raise DataError(
            f"data holds a {type(values).__name__} where an array [examples, ...] of numbers or text is expected; make "
            "a list of numbers one with numpy.array"
        )
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array


def _read_all(model: keras.Model, dataset: tf.data.Dataset, notes: list[str]) -> Any:
    """Return the examples of a data set, batched or not, as arrays."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise DataError("the tf.data.Dataset has no end: leave repeat() out, `epochs` says how often it is used")
    if _is_batched(model, dataset):
        dataset = dataset.unbatch()
    try:
        chunks = list(dataset.batch(CHUNK).as_numpy_iterator())
    except tf.errors.OpError as error:
        raise DataError(f"the tf.data.Dataset can't be read as examples of one shape: {first_line(error)}") from error
    if not chunks:
        raise DataError("the tf.data.Dataset is empty: give at least two examples")
    arrays = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *chunks)
    flat = tf.nest.flatten(arrays)
    megabytes = sum(array.nbytes for array in flat) / 2**20
    notes.append(
        f"the tf.data.Dataset was read once, {len(flat[0]):,} examples, {megabytes:,.0f} MB; what it draws at random "
        "stays as it was drawn: augment by layers of the model"
    )
    return arrays


def _is_batched(model: keras.Model, dataset: tf.data.Dataset) -> bool:
    """Return whether an element of a data set is a batch.

    Its inputs then have the ranks of the model's own, or all first dimensions vary.

    Raises:
        DataError: the model is not built, and the shapes leave it open.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    if any(spec.shape.rank is None for spec in specs):
        raise DataError("the tf.data.Dataset has elements of unknown rank: give its generator an output_signature")
    if any(spec.shape.rank == 0 for spec in specs):
        return False
    if own := getattr(model, "inputs", None):
        given = tf.nest.flatten(dataset.element_spec[0])
        return sorted(spec.shape.rank for spec in given) == sorted(len(tensor.shape) for tensor in own)
    if all(spec.shape[0] is None for spec in specs):
        return True
    if len({spec.shape[0] for spec in specs}) == 1:
        raise DataError(
            "it is not clear if the tf.data.Dataset is batched, because the model is not built: give "
            "dataset.unbatch(), or call the model once before"
        )
    return False


# --- splits and data sets ---------------------------------------------------------------------------------------------


class InMemorySplit(Split):
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
        self.content = hash_texts(f"{array.shape} {array.dtype} {_checksum(array)}" for array in arrays)
        with tf.device("CPU"):
            self._examples = tf.nest.map_structure(tf.constant, (inputs, targets))

    def read(self, index: tf.Tensor) -> tuple[Any, Any]:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, index), self._examples)


def _checksum(array: np.ndarray) -> int:
    checksum, flat = 0, array.reshape(-1)
    for start in range(0, flat.size, CHECKSUM_CHUNK):
        checksum = google_crc32c.extend(checksum, flat[start : start + CHECKSUM_CHUNK].tobytes())
    return checksum


class OwnSplit(Split):
    """A split of the user's own, whose `read` returns inputs and targets without the weights."""

    def __init__(self, split: Split):
        if type(split).weights is not Split.weights:
            raise DataError(
                f"{type(split).__name__} has weights, which accumtrain.fit takes with the arrays only: give "
                "(x, y, sample_weight), or a Split without `weights`"
            )
        self.size, self.image_shape, self.channels, self._split = split.size, None, 1, split

    def read(self, index: tf.Tensor) -> tuple[Any, Any]:
        inputs, targets = self._split.read(index)
        return inputs, (targets,)


class NoPreprocess(Preprocess):
    """No preparation."""

    def example(
        self, image: tf.Tensor, key: tf.Tensor, orientation: tf.Tensor | None = None, *, channels: int, training: bool
    ) -> tf.Tensor:
        return image

    def batch(self, images: Any, key: tf.Tensor, *, training: bool) -> Any:
        return images


@dataclass(frozen=True)
class GivenData(Dataset):
    """Examples of any structure, without preparation."""

    fills_last_batch: ClassVar[bool] = False  # a loss over a whole batch would count the copies

    @property
    def facts(self) -> str:
        return f"{self.sizes} examples"

    def shaped(self, batch: dict[str, Any], size: int) -> dict[str, Any]:
        def shaped(tensor: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tensor, [size, *tensor.shape[1:]])

        return {name: tf.nest.map_structure(shaped, batch[name]) for name in ("image", "label", "weight")}
