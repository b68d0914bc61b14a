"""export.format=savedmodel: a folder for TensorFlow, TensorFlow Serving and Keras's TFSMLayer."""

from __future__ import annotations

import json
from pathlib import Path

import tensorflow as tf

from accumtrain.exports.exported import CLASS_NAMES, Exported
from accumtrain.process.temporary_folder import temporary_folder


def write_saved_model(exported: Exported, path: Path) -> None:
    """Writes the folder. The names of the classes are in its assets/class_names.json."""
    module = tf.Module()
    module.model, module.serve = exported.model, exported.function()
    with temporary_folder("export") as folder:
        names = folder / CLASS_NAMES
        names.write_text(json.dumps(exported.class_names), encoding="utf-8")
        module.class_names = tf.saved_model.Asset(str(names))
        # gradients are no part of an inference, and those of reversible models would be large
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(module, str(path), signatures=module.serve, options=options)
