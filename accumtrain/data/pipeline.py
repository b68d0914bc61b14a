"""From positions in the stream to batches: the endless training stream and the finite evaluation.

Examples are read by index, so any batch is reached without reading those before it. Those of a `Stream` come in its
order. Everything runs in compiled graphs, in parallel, with results in a fixed order.
"""

from __future__ import annotations

import atexit
import gc
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar
from weakref import WeakMethod, WeakSet, finalize

import numpy as np
import tensorflow as tf

from accumtrain.data.holdout import Subset
from accumtrain.data.images.decode import decode
from accumtrain.data.images.encoded import EncodedSplit
from accumtrain.data.source import ArraySplit, Dataset, Split, Stream, read_labels
from accumtrain.data.stream import balanced_order, example_at, example_key
from accumtrain.data.text.by_length import order_by_length

RESIDENT_BYTES = 256 * 2**20  # limit for one decoded split in memory; MNIST and CIFAR are below it
_CACHE_CHUNK = 256
_CHUNK = 64  # examples read in one call, if images are then decoded one by one
_PREFETCH = 2  # finished batches held ready; fixed, as these batches take memory
ENDLESS = 2**40  # batches
_OTHER_STREAM = 2**40  # added to a seed for the stream that is mixed in; the seeds of runs are below it

# These graphs have no Python control flow on tensors. Without AutoGraph they take half as long to build.
do_not_convert = tf.autograph.experimental.do_not_convert

Example = dict[str, tf.Tensor]  # at least image, and int64 index and float32 weight, both []
# Function from positions, int64 [n], to example index int64, key uint64 and weight float32, each [n].
_AddressOf = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]


# ---- the part of a process ----


@dataclass(frozen=True)
class HostShard:
    """The part of every batch that a process reads: part `index` of `count`, for its `replicas` replicas in turn."""

    index: int = 0
    count: int = 1
    replicas: int = 1

    def rows(self, batch: int) -> int:
        """Return the number of examples of a batch that this process reads."""
        return batch // self.count

    def positions(self, offset: tf.Tensor, batch: int) -> tf.Tensor:
        """Return positions in the stream of the examples at `offset` among those of this process, both int64 [n]."""
        rows = self.rows(batch)
        return offset if self.count == 1 else offset // rows * batch + self.index * rows + offset % rows


WHOLE_BATCH = HostShard()


class DistributedBatches:
    """A distributed data set, whose iterators may be dropped at any time. `batches` makes that of a process's shard.

    TensorFlow reads ahead for devices in a thread that it ends only after it has freed the data set that is read, and
    crashes there (docs/decisions.md). So that data set, which it makes by `with_options`, is kept for longer.
    """

    iterators: ClassVar[WeakSet[Any]] = WeakSet()  # those that are held
    _ended: ClassVar[list[tf.data.Dataset]] = []  # whose iterators are being dropped, or are gone

    def __init__(self, strategy: tf.distribute.Strategy, batches: Callable[[HostShard], tf.data.Dataset]):
        self._batches = batches
        self._read: list[tf.data.Dataset] = []  # by the iterator that was made last
        if _has_one_cpu_of_many(strategy):  # which needs nothing to be read ahead for it
            self._distributed = self._of_process(_own_context(strategy))
        else:
            self._distributed = strategy.distribute_datasets_from_function(self._of_process)

    def __iter__(self) -> Any:
        self._ended.clear()
        self._read.clear()
        iterator = iter(self._distributed)
        finalize(iterator, self._ended.extend, [*self._read])
        self.iterators.add(iterator)
        return iterator

    def _of_process(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        processes = context.num_input_pipelines
        dataset = self._batches(
            HostShard(context.input_pipeline_id, processes, context.num_replicas_in_sync // processes)
        )
        # without an end, replicas need not ask each other for another batch before each one
        dataset = dataset if context.num_replicas_in_sync == 1 else dataset.repeat()
        read, with_options = self._read, WeakMethod(dataset.with_options)  # which do not hold what holds them

        def keep(*arguments: Any) -> tf.data.Dataset:
            method = with_options()
            assert method is not None, "it is called by this data set"
            read.append(method(*arguments))
            return read[-1]

        dataset.with_options = keep
        return dataset


def _has_one_cpu_of_many(strategy: tf.distribute.Strategy) -> bool:
    """Return whether each of several processes computes on one CPU device."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return [tf.DeviceSpec.from_string(device).device_type for device in strategy.extended.worker_devices] == ["CPU"]


def _own_context(strategy: tf.distribute.MultiWorkerMirroredStrategy) -> tf.distribute.InputContext:
    replicas = strategy.num_replicas_in_sync
    return tf.distribute.InputContext(replicas, strategy.cluster_resolver.task_id, replicas)


@atexit.register
def _drop_iterators() -> None:
    """Drop the iterators that an error holds while Python functions still run: they would wait for these for ever."""
    failed = getattr(sys, "last_value", None) is not None
    sys.last_exc = sys.last_value = sys.last_traceback = None  # type: ignore[attr-defined]
    if failed or DistributedBatches.iterators:  # a collection takes half a second
        gc.collect()


# ---- batches ----


def make_train_stream(strategy: tf.distribute.Strategy, data: Dataset, *, batch: int, seed: int, first: int = 0) -> Any:
    """Return an iterator over the training stream, distributed over replicas, from `make_train_batches`."""

    return iter(
        DistributedBatches(
            strategy, lambda shard: make_train_batches(data, batch=batch, first=first, seed=seed, shard=shard)
        )
    )


def make_train_batches(
    data: Dataset, *, batch: int, first: int, seed: int, shard: HostShard = WHOLE_BATCH
) -> tf.data.Dataset:
    """Return the training stream from position `first` on, without end.

    Args:
        data: An opened data set.
        batch: Examples over all processes and replicas. Batch k begins at position first + k * batch.
        first: Position in the stream.
        seed: Decides order and augmentation.
        shard: The part of each batch to read: one element for each of its replicas. A stream is read whole.

    Returns:
        Elements {"inputs": float32 [n, height, width, channels], "targets": int32 [n], "weight": float32 [n]} with
        n = batch / (shard.count * shard.replicas). Weights are 1, or 0 for examples that are left out. If the data is
        mixed, also "other_targets" and "share" (see `Mix`).

    Raises:
        DataError: An image can't be read (small data sets are read into memory here).
    """
    train = data.train
    if isinstance(train, Stream):
        return _shape_batches(data, train.batches_from(first, batch), batch)

    def stream(seed: int, *, keyed: bool = False) -> tf.data.Dataset:
        by_labels = balanced_order(read_labels(train), seed) if data.balanced else None
        order = by_labels or partial(example_at, size=train.size, seed=seed)
        if data.by_length:
            assert train.lengths is not None, "texts have lengths"
            order = order_by_length(order, train.lengths, seed)

        def address(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            epoch, index = order(first + position)
            return train.in_whole(index), example_key(epoch, index, seed), tf.ones_like(index, tf.float32)

        return _batches(data, cache_decoded(train.whole), address, ENDLESS, batch, shard, training=True, keyed=keyed)

    if not data.mix.is_on:
        return stream(seed)

    @do_not_convert
    def mix(own: Example, other: Example) -> Example:
        return data.mix(own.pop("key"), own, other)

    both = tf.data.Dataset.zip((stream(seed, keyed=True), stream(seed + _OTHER_STREAM)))
    return both.map(mix, tf.data.AUTOTUNE).prefetch(_PREFETCH).with_options(_options())


def make_eval_batches(
    data: Dataset, *, batch: int, split: str = "test", shard: HostShard = WHOLE_BATCH
) -> tf.data.Dataset:
    """Return every example of a split of `data.splits` once, in the source's order, without augmentation.

    Its key is its index, so what is drawn for it is the same in every evaluation.

    The last batch is filled up with copies of the last example, of weight 0. It is smaller than the others if
    `data.fills_last_batch` is false. Elements are as in `make_train_batches`.
    """
    examples = data.splits[split]
    if isinstance(examples, Stream):
        return _shape_batches(data, examples.batches_once(batch), None)
    stored = cache_decoded(examples.whole)
    whole, rest = divmod(examples.size, batch)

    def address(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        index = examples.in_whole(tf.minimum(position, examples.size - 1))
        return index, tf.cast(index, tf.uint64), tf.cast(position < examples.size, tf.float32)

    if data.fills_last_batch or not rest:
        return _batches(data, stored, address, whole + bool(rest), batch, shard, training=False)
    last = _batches(data, stored, lambda position: address(position + whole * batch), 1, rest, shard, training=False)
    return _batches(data, stored, address, whole, batch, shard, training=False).concatenate(last) if whole else last


def _batches(
    data: Dataset,
    split: Split,
    address_of: _AddressOf,
    count: int,
    batch: int,
    shard: HostShard,
    *,
    training: bool,
    keyed: bool = False,
) -> tf.data.Dataset:
    """Return `count` batches, the first at position 0. With `keyed` they also hold the keys of the examples."""
    by_example = isinstance(split, EncodedSplit) or data.inputs.by_example(training=training)
    size = shard.rows(batch) // shard.replicas  # examples per element
    stride, end = _CHUNK if by_example else size, min(count * shard.rows(batch), tf.int64.max)

    @do_not_convert
    def read(start: tf.Tensor) -> Example:
        offset = tf.range(start, tf.minimum(start + stride, end))
        index, key, weight = address_of(shard.positions(offset, batch))
        image, label = split.read(index)
        return {"index": index, "inputs": image, "targets": label, "key": key, "weight": weight * split.weights(index)}

    @do_not_convert
    def prepare(example: Example) -> Example:
        return {**example, "inputs": _prepare_one(data, split, example, training)}

    @do_not_convert
    def finish(examples: Example) -> Example:
        batch = _finish(data, examples, size, training=training)
        return batch | {"key": examples["key"]} if keyed else batch

    starts = tf.data.Dataset.range(0, end, stride)
    if by_example:
        examples = map_or_skip(starts.map(read, tf.data.AUTOTUNE).unbatch(), prepare, split)
        batches = examples.batch(size, drop_remainder=True).map(finish, tf.data.AUTOTUNE)
    else:
        batches = starts.map(read, tf.data.AUTOTUNE).map(finish, tf.data.AUTOTUNE)
    options = _options()
    if not isinstance(split, EncodedSplit):  # to optimize a graph copies the arrays in it, for every iterator
        options.experimental_optimization.apply_default_optimizations = False
    return batches.prefetch(_PREFETCH).with_options(options)


def _shape_batches(data: Dataset, batches: tf.data.Dataset, size: int | None) -> tf.data.Dataset:
    """Return the batches of a stream as elements of inputs, targets and weight, of `size` examples."""

    @do_not_convert
    def finish(inputs: Any, targets: Any) -> Example:
        weight = tf.ones(tf.shape(tf.nest.flatten(targets)[0])[:1])
        examples = {"inputs": inputs, "targets": targets, "weight": weight, "key": None}
        return _finish(data, examples, size, training=False)

    return batches.map(finish, tf.data.AUTOTUNE).prefetch(_PREFETCH).with_options(_options())


def _prepare_one(data: Dataset, split: Split, example: Example, training: bool) -> Any:
    stored, orientation = example["inputs"], None
    if isinstance(split, EncodedSplit):
        stored, orientation = split.load_limited(stored), split.orientation(example["index"])
    return data.inputs.example(stored, example["key"], orientation, training=training)


def _finish(data: Dataset, examples: Example, size: int | None, *, training: bool) -> Example:
    """Return a batch of inputs, targets and weight with known shapes: of `size` examples, None if any number."""
    batch = {**examples, "inputs": data.inputs.batch(examples["inputs"], examples["key"], training=training)}
    if data.to_target is not None:
        batch["targets"] = data.to_target(batch["targets"])
    if data.make_batch is not None:
        batch = data.make_batch(batch)

    def shaped(tensor: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tensor, [size, *tensor.shape[1:]])

    return {name: tf.nest.map_structure(shaped, batch[name]) for name in ("inputs", "targets", "weight")}


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    # It changes nothing that is measurable, and its thread may sleep for as long as it has run when an iterator ends.
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 0  # own threads, one for each core, because a step may have only one
    return options


# ---- examples that can't be read or decoded ----


def map_or_skip(examples: tf.data.Dataset, prepare: Callable[[Example], Example], split: Split) -> tf.data.Dataset:
    """Return `examples` with `prepare` applied to each, in order.

    If the split skips, an example for which `prepare` fails becomes an image of zeros with weight 0, and so does one
    that the split has left out before. The split notes it.
    """
    if not isinstance(split, EncodedSplit) or not split.skips:
        return examples.map(prepare, tf.data.AUTOTUNE)
    left_out = split.unusable

    def prepare_if_usable(example: Example) -> Example:
        usable = tf.reduce_all(example["index"] != left_out)
        with tf.control_dependencies([tf.debugging.Assert(usable, ["left out"])]):
            return prepare(tf.nest.map_structure(tf.identity, example))

    def prepared_or_blank(example: Example) -> tf.data.Dataset:
        prepared = tf.data.Dataset.from_tensors(example).map(prepare_if_usable)
        specs = prepared.element_spec["inputs"]

        def blank(example: Example) -> Example:
            tf.numpy_function(split.skip, [example["index"]], [])
            inputs = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
            return {**example, "inputs": inputs, "weight": tf.zeros([])}

        instead = tf.data.Dataset.from_tensors(example).map(blank)  # is run only if there is nothing before it
        return prepared.ignore_errors().concatenate(instead).take(1)

    return examples.interleave(
        prepared_or_blank, cycle_length=tf.data.AUTOTUNE, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )


# ---- small data sets, which are decoded once and stay in memory ----


def cache_decoded(split: Split) -> Split:
    """Return the split itself, or its decoded copy, made on first use, if that fits in RESIDENT_BYTES.

    A batch of a decoded copy is one gather.

    Raises:
        DataError: An image can't be read.
    """
    if not isinstance(split, EncodedSplit) or split.shape is None:
        return split
    if split.size * math.prod(split.shape) > RESIDENT_BYTES:
        return split
    if split.decoded is None:
        split.decoded = _decode_all(split)
    return split.decoded


def _decode_all(split: EncodedSplit) -> ArraySplit:
    def read(start: tf.Tensor) -> Example:
        index = tf.range(start, tf.minimum(start + _CACHE_CHUNK, split.size))
        item, label = split.read(index)
        return {"index": index, "inputs": item, "targets": label, "weight": tf.ones_like(index, tf.float32)}

    def pixels(example: Example) -> Example:
        orientation = split.orientation(example["index"])
        image = decode(split.load_limited(example["inputs"]), split.channels, orientation)
        return {**example, "inputs": tf.ensure_shape(image, split.shape)}

    examples = map_or_skip(tf.data.Dataset.range(0, split.size, _CACHE_CHUNK).map(read).unbatch(), pixels, split)
    images = np.empty([split.size, *(split.shape or ())], np.uint8)
    label = examples.element_spec["targets"]
    labels = np.empty([split.size, *label.shape], label.dtype.as_numpy_dtype)
    weights = np.empty([split.size], np.float32)
    try:
        for batch in examples.batch(_CACHE_CHUNK).with_options(_options()).as_numpy_iterator():
            rows = batch["index"]
            images[rows], labels[rows], weights[rows] = batch["inputs"], batch["targets"], batch["weight"]
    except tf.errors.OpError:
        split.inspect_recent()
        raise
    return ArraySplit(images, labels, split.white, weights)


# ---- images for a person to look at ----


def show_inputs(data: Dataset, split: str, positions: Sequence[int]) -> np.ndarray:
    """Return the inputs of some examples of a split, as a model sees them before they are normalised.

    Returns:
        Of images float32 [n, height, width, channels], 0..1.
    """
    examples = data.splits[split]
    some = Subset(examples.whole, np.array(examples.in_whole(tf.constant(positions, tf.int64))))
    batches = make_eval_batches(replace(data, test=some), batch=len(positions))
    return data.inputs.show(next(iter(batches))["inputs"].numpy())
