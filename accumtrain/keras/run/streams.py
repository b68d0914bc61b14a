"""Examples that `accumtrain.fit` does not read whole: a tf.data.Dataset, a generator function, a keras.utils.PyDataset.

They are trained on in the order in which they come, and begin again at their end. `IndexedStream` reaches any batch by
its index, so a continued run reads nothing again. `IteratedStream` can only be read from its beginning, so a continued
run skips what came before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.console import say, warn
from accumtrain.data.pipeline import ENDLESS
from accumtrain.data.source import Split, Stream
from accumtrain.errors import DataError
from accumtrain.keras.run.arrays import as_arrays, hash_arrays, length_of
from accumtrain.train.hooks import Hook, TrainingState

FIRST_BATCH = "first batch"  # among the values that hooks keep
CHUNK = 64  # single examples that are read together
READING = "IteratorGetNext"  # the operation that TensorFlow names in errors of a data set
EPOCH_METHODS = ("on_epoch_begin", "on_epoch_end")  # of a PyDataset
ASSERTION = "assertion failed: "
GRAPH_ERROR_PREFIXES = ("Graph execution error", "Detected at node", "File ")  # of lines that give no reason


def open_stream(model: keras.Model, data: Any, name: str = "data") -> GivenStream | None:
    """Return the stream of a tf.data.Dataset, a PyDataset or a function that returns an iterator; None for other data.

    Args:
        name: of the data in messages.

    Raises:
        DataError: it is empty, or can't be read as examples, or can't be begun again.
    """
    if isinstance(data, tf.data.Dataset):
        return DataSetStream(model, data)
    if isinstance(data, keras.utils.PyDataset):
        return IndexedStream(model, data)
    if isinstance(data, Iterator):
        raise DataError(
            f"{name} is a {type(data).__name__}, which can be read only once, and a continued run begins it again: "
            "give the function that makes it, without calling it"
        )
    return GeneratorStream(model, data) if callable(data) else None


class GivenStream(Stream):
    """A stream of the user's program. Its elements are inputs, and the tuple of targets and weights.

    Args:
        name: of its source, in messages.

    Attributes:
        first: its first batch, or its first example as a batch, as arrays.
        batch: the number of examples of its own batches; None if it has single examples.
        examples: those of a pass; None if they are not known before they are read.
        nominal: as `examples`, but a last batch that may be smaller counts as a full one.
        endless: a pass is known to have no end.
    """

    first: tuple[Any, Any]
    batch: int | None = None
    examples: int | None = None
    nominal: int | None = None
    endless = False
    size = 0  # until an epoch is known
    _least = 0  # examples that a pass must have, if their number is not known

    def __init__(self, name: str):
        self.name = name
        self._spec: Any = None

    def set_epoch(self, batch_size: int, steps_per_epoch: int | None) -> None:
        """Let an epoch have the examples of `steps_per_epoch` updates. None is those of a pass.

        Raises:
            DataError: a pass is of unknown length, or shorter.
        """
        if steps_per_epoch is None:
            if self.nominal is None:
                has = "no end" if self.endless else "an unknown number of examples"
                raise DataError(f"{self.name} has {has}: give steps_per_epoch, the number of updates of an epoch")
            self.size = self.nominal
            return
        self.size = steps_per_epoch * batch_size
        if self.examples is None:
            self._least = self.size - batch_size + 1  # the last batch of a pass may be smaller
        elif self.size > self.examples:
            raise DataError(
                f"steps_per_epoch={steps_per_epoch} with batch_size={batch_size} asks for {self.size:,} examples, and "
                f"{self.name} has {self.examples:,}: leave steps_per_epoch out, or give fewer"
            )

    def count(self) -> None:
        """Let an epoch have all examples of a pass, which are read if their number is not known.

        Raises:
            DataError: a pass has no end.
        """
        if self.endless:
            raise DataError(f"{self.name} has no end, and an evaluation reads all validation_data: shorten it")
        if self.examples is None:
            with self._explained():
                self.examples = sum(length_of(batch) for batch in self.batches_once(CHUNK))
        self.size = self.examples

    def warn_if_changed(self, state: TrainingState) -> None:
        """Warn, as a hook at the beginning, if the first batch is not the one with which the run has begun."""
        first = hash_arrays(self.first)
        if state.kept.setdefault(FIRST_BATCH, first) != first:
            warn(
                f"{self.name} begins with other examples than at the beginning of this run, so its bits will not be "
                "those of a run that was not stopped: give what draws at random a seed, and make the data anew for "
                "each call"
            )

    def read(self, index: tf.Tensor) -> tuple[Any, Any]:
        if int(tf.reduce_max(index)) >= length_of(self.first):
            with self._explained():
                return super().read(index)
        return tf.nest.map_structure(lambda array: tf.gather(array, index), self.first)

    def explain(self, error: tf.errors.OpError) -> DataError | None:
        if self.failure is not None:
            return self._unreadable(self.failure)
        return self._unreadable(error) if READING in error.message else None

    def _arrays(self, model: keras.Model, batch: Any, name: str) -> Any:
        """Return a batch as arrays. Raise DataError if they are not like those of the first, but for their number."""
        arrays = as_arrays(model, batch, name)
        spec = _spec_of(arrays)
        if self._spec is None:
            self._spec = spec
        if spec != self._spec:
            shown, first = (tf.nest.map_structure(_shown, each) for each in (spec, self._spec))
            raise DataError(
                f"{name} has inputs and targets {shown}, and the first batch has {first}: give all of them one "
                "structure, type and shape; where shapes vary, give a tf.data.Dataset"
            )
        return arrays

    def _unreadable(self, error: Exception) -> DataError:
        if isinstance(error, DataError):
            return error
        reason = reason_of(error) if isinstance(error, tf.errors.OpError) else f"{type(error).__name__}: {error}"
        return DataError(f"{self.name} can't be read: {reason}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of the user's code in this context into DataError."""
        try:
            yield
        except Exception as error:  # of any kind, as it is the user's
            raise self._unreadable(self.failure or error) from error

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Keep an error of the user's code in this context, as TensorFlow makes a text of it."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


# --- a tf.data.Dataset or a generator, which is read from its beginning -----------------------------------------------


class IteratedStream(GivenStream):
    """A stream that is read from its beginning.

    Attributes:
        rows: its batches in their order, of any length.
    """

    rows: tf.data.Dataset

    def batches_from(self, position: int, batch: int) -> tf.data.Dataset:
        """Raise InvalidArgumentError, once it is read, if a pass ends before an epoch does, or is of unknown length."""
        if position:
            say(f"reading {position:,} examples again, as {self.name} is read from its beginning")
        part = math.gcd(position, batch)
        rows = self.rows
        if self._least:
            rows = _of_at_least(self._least, rows)
        elif self.examples is None and self.batch is not None:
            rows = _of_one_size(self.batch, rows)
        parts = rows.repeat().rebatch(part, drop_remainder=True).skip(position // part)
        return parts.rebatch(batch, drop_remainder=True)

    def batches_once(self, batch: int) -> tf.data.Dataset:
        return self.rows.rebatch(batch)


class DataSetStream(IteratedStream):
    """A tf.data.Dataset of examples or of batches of them."""

    def __init__(self, model: keras.Model, data: tf.data.Dataset):
        super().__init__("the tf.data.Dataset")
        spec, length = data.element_spec, int(data.cardinality())
        if not (isinstance(spec, tuple) and len(spec) in (2, 3)):
            raise DataError(
                f"an element of {self.name} is a {type(spec).__name__}: make it (x, y) or (x, y, sample_weight)"
            )
        batched = self._is_batched(model, data)
        self.rows = (data if batched else data.batch(CHUNK)).map(_as_example)
        self.endless = length == tf.data.INFINITE_CARDINALITY
        with self._explained():
            first = next(iter(data if batched else data.batch(1)), None)
        if first is None:
            raise DataError(f"{self.name} is empty: give at least one example")
        self.first = as_arrays(model, tf.nest.map_structure(np.asarray, first), f"a batch of {self.name}")
        rows = length_of(first)
        self.batch = rows if batched else None
        if length >= 0:
            self.nominal = length * rows
            all_full = not batched or tf.nest.flatten(spec)[0].shape[0] is not None
            self.examples = self.nominal if all_full else None

    def _is_batched(self, model: keras.Model, data: tf.data.Dataset) -> bool:
        """Return whether an element of a data set is a batch.

        Its inputs then have the ranks of the model's own, or all first dimensions vary.

        Raises:
            DataError: the model is not built, and the shapes leave it open.
        """
        specs = tf.nest.flatten(data.element_spec)
        if any(spec.shape.rank is None for spec in specs):
            raise DataError(f"{self.name} has elements of unknown rank: give its generator an output_signature")
        if any(spec.shape.rank == 0 for spec in specs):
            return False
        if own := getattr(model, "inputs", None):
            given = tf.nest.flatten(data.element_spec[0])
            return sorted(spec.shape.rank for spec in given) == sorted(len(tensor.shape) for tensor in own)
        if all(spec.shape[0] is None for spec in specs):
            return True
        if len({spec.shape[0] for spec in specs}) == 1:
            raise DataError(
                f"it is not clear if {self.name} is batched, because the model is not built: give dataset.unbatch(), "
                "or call the model once before"
            )
        return False


class GeneratorStream(IteratedStream):
    """A function that returns an iterator over batches, such as a generator function."""

    def __init__(self, model: keras.Model, make: Callable[[], Any]):
        super().__init__(f"the generator {getattr(make, '__name__', type(make).__name__)}")
        self._model, self._make = model, make
        self._made: Any = None
        with self._explained():
            first = next(self._batches(), None)
        if first is None:
            raise DataError(f"{self.name} is empty: let it yield (x, y) or (x, y, sample_weight), batch by batch")
        self.first, self.batch = first, length_of(first)
        self.rows = tf.data.Dataset.from_generator(self._batches, output_signature=self._spec)

    def _batches(self) -> Iterator[Any]:
        with self._noted():
            before, self._made = self._made, self._make()
            if self._made is before and isinstance(before, Iterator):
                raise DataError(
                    f"{self.name} returns the same iterator again, which has been read: let it make a new one each time"
                )
            for number, batch in enumerate(self._made):
                yield self._arrays(self._model, batch, f"batch {number} of {self.name}")


def _as_example(x: Any, y: Any, *weights: Any) -> tuple[Any, Any]:
    """Return inputs, and targets with weights, with floats as Keras computes with them."""

    def converted(tensor: tf.Tensor) -> tf.Tensor:
        return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor

    return tf.nest.map_structure(converted, (x, (y, *weights)))


def _of_at_least(examples: int, rows: tf.data.Dataset) -> tf.data.Dataset:
    """Return the same batches, with an error at their end if they have fewer examples."""

    def none_of(spec: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)

    def counted(before: tf.Tensor, batch: Any) -> tuple[tf.Tensor, Any]:
        size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        enough = (size > 0) | (before >= examples)
        told = f"it ends before the example {examples:,}, and steps_per_epoch asks for more: give fewer"
        with tf.control_dependencies([tf.debugging.Assert(enough, [told])]):
            return before + size, batch

    end = tf.data.Dataset.from_tensors(tf.nest.map_structure(none_of, rows.element_spec))
    return rows.concatenate(end).scan(tf.constant(0, tf.int64), counted)


def _of_one_size(size: int, rows: tf.data.Dataset) -> tf.data.Dataset:
    """Return the same batches, with an error if one has not `size` examples, unless it is the last and has fewer."""

    def checked(full: tf.Tensor, batch: Any) -> tuple[tf.Tensor, Any]:
        found = tf.shape(tf.nest.flatten(batch)[0])[0]
        told = "batches have different sizes, so an epoch is of unknown length: give steps_per_epoch"
        with tf.control_dependencies([tf.debugging.Assert(full & (found <= size), [told])]):
            return found == size, batch

    return rows.scan(tf.constant(True), checked)


# --- a PyDataset, any batch of which is reached by its index ----------------------------------------------------------


class IndexedStream(GivenStream):
    """A keras.utils.PyDataset, all batches of which have the same number of examples, but the last may have fewer."""

    def __init__(self, model: keras.Model, data: keras.utils.PyDataset):
        super().__init__(f"the PyDataset {type(data).__name__}")
        self._model, self._data = model, data
        for method in EPOCH_METHODS:
            if getattr(type(data), method) is not getattr(keras.utils.PyDataset, method):
                raise DataError(
                    f"{self.name} has {method}, which may change its batches, and a continued run reaches them by "
                    "their index: leave it out, or give a generator function, which is read in its order"
                )
        with self._explained():
            length = data.num_batches
            if length == 0:
                raise DataError(f"{self.name} is empty: give at least one batch")
            self.first = self._arrays(model, data[0], f"batch 0 of {self.name}")
            self._rows = self.batch = length_of(self.first)
            if length is not None:
                last = length_of(self._arrays(model, data[length - 1], f"batch {length - 1} of {self.name}"))
                self.examples = self.nominal = (length - 1) * self._rows + last
        self.endless, self._length = length is None, length

    def batches_from(self, position: int, batch: int) -> tf.data.Dataset:
        passes, row = (0, position) if self.examples is None else divmod(position, self.examples)
        index, rest = divmod(row, self._rows)
        begin = passes * (self._length or 0) + index

        def read(number: tf.Tensor) -> Any:
            skipped = tf.where(number == begin, rest, 0)
            return tf.nest.map_structure(lambda tensor: tensor[skipped:], self._read(number))

        return self._map(tf.data.Dataset.range(begin, ENDLESS), read).rebatch(batch, drop_remainder=True)

    def batches_once(self, batch: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(ENDLESS if self._length is None else self._length)
        return self._map(numbers, self._read).rebatch(batch)

    def _map(self, numbers: tf.data.Dataset, read: Callable[[tf.Tensor], Any]) -> tf.data.Dataset:
        return numbers.map(read, max(self._data.workers, 1), deterministic=True)

    def _read(self, number: tf.Tensor) -> Any:
        """Return a batch by its number, which counts on from pass to pass."""
        specs = tf.nest.flatten(self._spec)
        tensors = tf.numpy_function(self._read_arrays, [number], [spec.dtype for spec in specs])
        shaped = [tf.ensure_shape(tensor, spec.shape) for tensor, spec in zip(tensors, specs, strict=True)]
        return tf.nest.pack_sequence_as(self._spec, shaped)

    def _read_arrays(self, number: np.int64) -> list[np.ndarray]:
        with self._noted():
            index = int(number) if self._length is None else int(number) % self._length
            name = f"batch {index} of {self.name}"
            arrays = self._arrays(self._model, self._data[index], name)
            expected, found = self._rows, length_of(arrays)
            if self.examples is not None:
                expected = min(self._rows, self.examples - index * self._rows)
            if found != expected:
                raise DataError(f"{name} has {found} examples instead of {expected}: only the last may have fewer")
            return tf.nest.flatten(arrays)


def _shown(spec: tf.TensorSpec) -> str:
    return f"{spec.dtype.name} {spec.shape[1:].as_list()}"


def _spec_of(arrays: Any) -> Any:
    """Return the specs of batches of any length, of which nested arrays are one."""
    return tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape[1:]], tf.as_dtype(array.dtype)), arrays
    )


def hooks_of(split: Split) -> list[Hook]:
    """Return the hooks of a split to train on."""
    return [Hook(split.warn_if_changed, 1, "begin")] if isinstance(split, GivenStream) else []


def reason_of(error: tf.errors.OpError) -> str:
    """Return the line of a graph's error that gives the reason."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(ASSERTION):
            return line.removeprefix(ASSERTION).strip("[]")
        if line[0].isupper() and not line.startswith(GRAPH_ERROR_PREFIXES):
            return line
    return lines[0]
