"""Load an export and compute with it, in a process without accumtrain: python reload.py <file> <inputs> <outputs>.

`inputs` is an .npz file of arrays of images, uint8 [N, height, width, channels]. `outputs` will hold the answers to
them, float32 [N, K], and `class_names`. The names of more signatures of a SavedModel may follow.

This file also shows a reader how to use an export.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from zipfile import ZipFile


def load_saved_model(path):  # type: ignore[no-untyped-def]
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    names = json.loads(Path(path, "assets", "class_names.json").read_text(encoding="utf-8"))

    def predict(images, signature="serving_default"):  # type: ignore[no-untyped-def]
        serve = loaded.signatures[signature]
        (given,), (output,) = serve.structured_input_signature[1], serve.structured_outputs
        return serve(**{given: tf.constant(images)})[output].numpy()

    return names, predict


def load_keras(path):  # type: ignore[no-untyped-def]
    import keras

    model = keras.models.load_model(path)
    return json.loads(ZipFile(path).read("class_names.json")), lambda images: model.predict(images, verbose=0)


def load_tflite(path):  # type: ignore[no-untyped-def]
    import tensorflow as tf

    serve = tf.lite.Interpreter(path).get_signature_runner()
    (given,), (output,) = serve.get_input_details(), serve.get_output_details()
    return json.loads(ZipFile(path).read("class_names.json")), lambda images: serve(**{given: images})[output]


def load_onnx(path):  # type: ignore[no-untyped-def]
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    return names, lambda images: session.run(None, {session.get_inputs()[0].name: images})[0]


def main(path, inputs, outputs, *signatures):  # type: ignore[no-untyped-def]
    import numpy as np

    kinds = {"": load_saved_model, ".keras": load_keras, ".tflite": load_tflite, ".onnx": load_onnx}
    names, predict = kinds["" if Path(path).is_dir() else Path(path).suffix](path)
    given = dict(np.load(inputs))
    answers = {name: predict(images) for name, images in given.items()}
    for signature in signatures:
        answers |= {f"{signature}_{name}": predict(images, signature) for name, images in given.items()}
    np.savez(outputs, class_names=names, **answers)


if __name__ == "__main__":
    sys.modules["accumtrain"] = None  # type: ignore[assignment]  # so that nothing of it is imported
    main(*sys.argv[1:])
