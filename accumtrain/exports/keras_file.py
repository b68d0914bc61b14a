"""export.format=keras: a .keras file, whose layers are all Keras's own."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from accumtrain.exports.exported import IMAGES, PROBABILITIES, Exported
from accumtrain.exports.names_in_zip import append_names
from accumtrain.models.keras_model import KerasSegment


def write_keras(exported: Exported, path: Path) -> None:
    """Writes the file of a Keras model. The names of the classes are in the archive that a .keras file is."""
    height, width, channels = exported.shape
    prepare = exported.preprocess
    mean, std = (np.resize(np.array(values, float), channels) for values in (prepare.mean, prepare.std))
    (segment,) = exported.model.segments
    assert isinstance(segment, KerasSegment)
    images = keras.Input((None, None, channels), dtype="uint8", name=IMAGES)
    pixels = keras.layers.Rescaling(1 / prepare.white)(images)
    pixels = keras.layers.Resizing(height, width, antialias=True)(pixels)
    logits = segment.model(keras.layers.Rescaling((1 / std).tolist(), (-mean / std).tolist())(pixels))
    outputs = keras.layers.Softmax(name=PROBABILITIES)(logits)
    keras.Model(images, outputs, name=exported.label).save(path)
    append_names(path, exported.class_names)
