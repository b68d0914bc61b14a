"""Batches from a data set: the endless training stream and the finite evaluation.

Reading goes by index, so any batch is reached without replaying what came before. Everything runs in compiled
graphs, in parallel, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.preprocess import Preprocess
from accumtrain.data.resident import resident
from accumtrain.data.source import Data, Split
from accumtrain.data.stream import example_at, example_key

# Examples read by one call where images are then decoded one by one.
_CHUNK = 64
# Finished batches held ready. A fixed number: the batches count as memory in use.
_PREFETCH = 2
_ENDLESS = 2**40  # batches

# These graphs hold no Python control flow on tensors; not looking for any halves the time to build them.
do_not_convert = tf.autograph.experimental.do_not_convert

# From positions, int64 [n], to example index int64, key uint64 and weight float32, each [n].
_AddressOf = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]


@dataclass(frozen=True)
class Share:
    """Which examples of every batch a process reads: part `index` of `count`, for its `replicas` replicas in turn."""

    index: int = 0
    count: int = 1
    replicas: int = 1

    def rows(self, batch: int) -> int:
        """Examples of a batch that this process reads."""
        return batch // self.count

    def positions(self, place: tf.Tensor, batch: int) -> tf.Tensor:
        """Where in the stream of batches this process's examples number `place` (int64 [n]) are."""
        rows = self.rows(batch)
        return place if self.count == 1 else place // rows * batch + self.index * rows + place % rows


WHOLE = Share()


def distributed(strategy: tf.distribute.Strategy, batches: Callable[[Share], tf.data.Dataset]) -> Any:
    """A distributed data set of what `batches` makes for the share of each process."""

    def of_process(context: tf.distribute.InputContext) -> tf.data.Dataset:
        processes = context.num_input_pipelines
        dataset = batches(Share(context.input_pipeline_id, processes, context.num_replicas_in_sync // processes))
        # where it has no end, replicas need not ask each other before each batch whether there is another
        return dataset if context.num_replicas_in_sync == 1 else dataset.repeat()

    return strategy.distribute_datasets_from_function(of_process)


def train_batches(data: Data, *, batch: int, first: int, seed: int, share: Share = WHOLE) -> tf.data.Dataset:
    """The training stream from position `first` on, without end.

    Args:
        data: An opened data set.
        batch: Examples over all processes and replicas; batch k holds positions first + k * batch and the batch - 1
            after it.
        first: Position in the stream.
        seed: Decides order and augmentation.
        share: What of each batch is read here: one element for each of its replicas.

    Returns:
        Elements {"image": float32 [n, height, width, channels], "label": int32 [n], "weight": float32 [n] of ones}
        with n = batch / (share.count * share.replicas).

    Raises:
        DataError: An image can't be read (small data sets are read into memory here).
    """
    split = resident(data.train)

    def address(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        epoch, index = example_at(first + position, split.size, seed)
        return index, example_key(epoch, index, seed), tf.ones_like(index, tf.float32)

    return _batches(data, split, address, _ENDLESS, batch, share, training=True)


def eval_batches(data: Data, *, batch: int, split: str = "test", share: Share = WHOLE) -> tf.data.Dataset:
    """Every example of a split ("train" or "test") once, in the source's order, without augmentation.

    The last batch is filled up with copies of the last example of weight 0. Elements as of `train_batches`.
    """
    examples = resident({"train": data.train, "test": data.test}[split])
    batches = -(-examples.size // batch)

    def address(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        index = tf.minimum(position, examples.size - 1)
        return index, tf.zeros_like(index, tf.uint64), tf.cast(position < examples.size, tf.float32)

    return _batches(data, examples, address, batches, batch, share, training=False)


def _batches(
    data: Data, split: Split, address_of: _AddressOf, count: int, batch: int, share: Share, *, training: bool
) -> tf.data.Dataset:
    """`count` batches, the first at position 0."""
    by_example = isinstance(split, EncodedSplit) or data.preprocess.by_example
    size = share.rows(batch) // share.replicas  # of an element
    stride, end = _CHUNK if by_example else size, count * share.rows(batch)

    @do_not_convert
    def read(start: tf.Tensor) -> dict[str, tf.Tensor]:
        place = tf.range(start, tf.minimum(start + stride, end))
        index, key, weight = address_of(share.positions(place, batch))
        image, label = split.read(index)
        return {"image": image, "label": label, "key": key, "weight": weight}

    @do_not_convert
    def prepare(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {**example, "image": _prepared(data.preprocess, split, example, training)}

    @do_not_convert
    def finish(examples: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        image = data.preprocess.batch(examples["image"], examples["key"], training=training)
        return {
            "image": tf.ensure_shape(image, [size, *data.image_shape]),
            "label": tf.ensure_shape(examples["label"], [size]),
            "weight": tf.ensure_shape(examples["weight"], [size]),
        }

    starts = tf.data.Dataset.range(0, end, stride)
    if by_example:
        examples = starts.map(read, tf.data.AUTOTUNE).unbatch().map(prepare, tf.data.AUTOTUNE)
        batches = examples.batch(size, drop_remainder=True).map(finish, tf.data.AUTOTUNE)
    else:
        batches = starts.map(read, tf.data.AUTOTUNE).map(finish, tf.data.AUTOTUNE)
    return batches.prefetch(_PREFETCH).with_options(_options())


def _prepared(preprocess: Preprocess, split: Split, example: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
    image = split.load(example["image"]) if isinstance(split, EncodedSplit) else example["image"]
    image = preprocess.example(image, example["key"], channels=split.channels, training=training)
    return image if image.dtype == tf.float32 else tf.ensure_shape(image, split.image_shape)


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 0  # threads of its own, one for each core: a step may have but one
    return options
