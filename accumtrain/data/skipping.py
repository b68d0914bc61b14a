"""Examples that can't be read or decoded: what data.on_error says is done about them."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.source import Split

Example = dict[str, tf.Tensor]  # at least image, and int64 index and float32 weight, both []


def map_or_skip(examples: tf.data.Dataset, prepare: Callable[[Example], Example], split: Split) -> tf.data.Dataset:
    """`examples` with `prepare` applied to each, in order.

    If the split skips, an example for which `prepare` fails becomes an image of zeros with weight 0, and the split
    notes it.
    """
    if not isinstance(split, EncodedSplit) or not split.skips:
        return examples.map(prepare, tf.data.AUTOTUNE)

    def prepared_or_blank(example: Example) -> tf.data.Dataset:
        prepared = tf.data.Dataset.from_tensors(example).map(prepare)
        image = prepared.element_spec["image"]

        def blank(example: Example) -> Example:
            tf.numpy_function(split.skip, [example["index"]], [])
            return {**example, "image": tf.zeros(image.shape, image.dtype), "weight": tf.zeros([])}

        instead = tf.data.Dataset.from_tensors(example).map(blank)  # is run only if there is nothing before it
        return prepared.ignore_errors().concatenate(instead).take(1)

    return examples.interleave(
        prepared_or_blank, cycle_length=tf.data.AUTOTUNE, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
