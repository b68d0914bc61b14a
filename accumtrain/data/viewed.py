"""Examples as a person can look at them: what the model sees, before it is normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from accumtrain.data.holdout import Part
from accumtrain.data.pipeline import eval_batches
from accumtrain.data.source import Data


def viewed(data: Data, split: str, positions: Sequence[int]) -> np.ndarray:
    """The images at these places of a split, at least one: float32 [n, height, width, channels], 0..1."""
    examples = data.splits[split]
    some = Part(examples.whole, np.array(examples.in_whole(tf.constant(positions, tf.int64))))
    batches = eval_batches(replace(data, test=some), batch=len(positions))
    images = next(iter(batches))["image"].numpy()
    scale = (data.preprocess.std, data.preprocess.mean)
    std, mean = (np.resize(np.array(each, np.float32), images.shape[-1]) for each in scale)
    return np.clip(images * std + mean, 0, 1)
