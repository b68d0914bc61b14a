"""The content of an export, and a function for each format that writes it.

The names of the classes, labels or numbers go along: a savedmodel has them in assets/class_names.json, ONNX in its
metadata `class_names`, as JSON. The others are, or end with, a zip archive, which has a class_names.json. So do the
thresholds of labels, and the vocabulary of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.pixels import Pixels
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.tasks.answer import Answer

CLASS_NAMES = "class_names"  # key of `Exported.texts`
SERVING = "serving_default"  # the signature of the answers
OPSET = 18  # the newest that tf2onnx 1.17 writes


@dataclass(frozen=True)
class Exported:
    """A trained model in float32.

    Attributes:
        inputs: the kind of the inputs; images are pixels 0..255 of any size.
        quantize: the type of weights in the file: none for float32, float16 or int8.
    """

    label: str
    model: Model
    inputs: Inputs
    answer: Answer
    quantize: str = "none"

    @property
    def texts(self) -> dict[str, str]:
        """JSON texts that go along, by name."""
        values = {CLASS_NAMES: self.answer.columns, **self.answer.texts(), **self.inputs.texts()}
        return {name: json.dumps(value) for name, value in values.items()}

    def function(self, signature: str = SERVING) -> tf.types.experimental.PolymorphicFunction:
        """Return the function of a signature, from inputs to one output by its name.

        All formats have the operations of the inference, whose output is float32 [N, ..., K].
        """
        name = self.answer.name if signature == SERVING else signature

        @tf.function(input_signature=[self.inputs.signature], autograph=False)
        def served(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return {name: self.compute(self.inputs.serve(inputs), signature)}

        return served

    def compute(self, inputs: Any, signature: str = SERVING) -> tf.Tensor:
        """Return the output of a signature for prepared inputs."""
        compute = self.answer.answer if signature == SERVING else self.answer.further[signature]
        return compute(self.model, inputs)


def write_saved_model(exported: Exported, path: Path) -> None:
    """Write a folder for TensorFlow, TensorFlow Serving and Keras's TFSMLayer. It alone has what is `further`."""
    module = tf.Module()
    module.model, module.serve = exported.model, exported.function()
    signatures = {SERVING: module.serve, **{name: exported.function(name) for name in exported.answer.further}}
    with temporary_folder("export") as folder:
        for name, text in exported.texts.items():
            file = folder / f"{name}.json"
            file.write_text(text, encoding="utf-8")
            setattr(module, name, tf.saved_model.Asset(str(file)))
        # without gradients, as those of reversible models would be large
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(module, str(path), signatures=signatures, options=options)


def write_keras(exported: Exported, path: Path) -> None:
    """Write a .keras file, whose layers are all Keras's own."""
    import keras  # it takes a second, and other formats do not need it

    from accumtrain.models.keras.model import KerasSegment

    prepare = exported.inputs
    assert isinstance(prepare, Pixels), "keras.applications takes images"
    height, width, channels = prepare.shape
    mean, std = (np.resize(np.array(values, float), channels) for values in (prepare.mean, prepare.std))
    (segment,) = exported.model.segments
    assert isinstance(segment, KerasSegment)
    images = keras.Input((None, None, channels), dtype="uint8", name=prepare.signature.name)
    pixels = keras.layers.Rescaling(1 / prepare.white)(images)
    pixels = keras.layers.Resizing(height, width, antialias=True)(pixels)
    logits = segment.model(keras.layers.Rescaling((1 / std).tolist(), (-mean / std).tolist())(pixels))
    outputs = exported.answer.keras_layer()(logits)
    keras.Model(images, outputs, name=exported.label).save(path)
    _append_texts(path, exported.texts)


def write_tflite(exported: Exported, path: Path) -> None:
    """Write a file for LiteRT, which was TensorFlow Lite. LiteRT has its metadata in the archive, too.

    With int8 the weights alone are quantized ("dynamic range"). With activations in int8, the matrices by which
    `resize` takes images of any size would be in int8, too, and answers would be wrong.
    """
    infer = exported.function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([infer.get_concrete_function()], exported.model)
    if exported.quantize != "none":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if exported.quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    path.write_bytes(converter.convert())
    _append_texts(path, exported.texts)


def write_onnx(exported: Exported, path: Path) -> None:
    """Write a file for onnxruntime and all that read ONNX."""
    import onnx
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(exported.function(), [exported.inputs.signature], opset=OPSET)
    onnx.helper.set_model_props(model, exported.texts)
    onnx.save(model, str(path))


def _append_texts(path: Path, texts: Mapping[str, str]) -> None:
    """Add files such as class_names.json, which `ZipFile(path).read("class_names.json")` reads."""
    with ZipFile(path, "a") as archive:
        for name, text in texts.items():
            archive.writestr(f"{name}.json", text)
