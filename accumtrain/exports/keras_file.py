"""export.format=keras: a .keras file, whose layers are all Keras's own."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from accumtrain.exports.exported import IMAGES, PROBABILITIES, Exported
from accumtrain.exports.names_in_zip import append_names


def write_keras(exported: Exported, path: Path) -> None:
    """Writes the file of a Keras model. The names of the classes are in the archive that a .keras file is."""
    height, width, channels = exported.shape
    mean, std = (
        np.resize(np.array(each, float), channels) for each in (exported.preprocess.mean, exported.preprocess.std)
    )
    (segment,) = exported.model.segments
    images = keras.Input((None, None, channels), dtype="uint8", name=IMAGES)
    pixels = keras.layers.Rescaling(1 / exported.preprocess.white)(images)
    pixels = keras.layers.Resizing(height, width, antialias=True)(pixels)
    logits = segment.model(keras.layers.Rescaling((1 / std).tolist(), (-mean / std).tolist())(pixels))
    outputs = keras.layers.Softmax(name=PROBABILITIES)(logits)
    keras.Model(images, outputs, name=exported.label).save(path)
    append_names(path, exported.class_names)
