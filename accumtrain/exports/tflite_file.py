"""export.format=tflite: a file for LiteRT, which was TensorFlow Lite."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from accumtrain.exports.exported import Exported
from accumtrain.exports.names_in_zip import append_names


def write_tflite(exported: Exported, path: Path) -> None:
    """Writes the file. The names of the classes are in the zip archive at its end, where LiteRT has its metadata."""
    infer = exported.function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([infer.get_concrete_function()], exported.model)
    path.write_bytes(converter.convert())
    append_names(path, exported.class_names)
