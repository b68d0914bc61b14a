"""export.format=onnx: a file for onnxruntime and all that read ONNX."""

from __future__ import annotations

import json
from pathlib import Path

from accumtrain.exports.exported import Exported

OPSET = 18  # the newest that tf2onnx 1.17 writes


def write_onnx(exported: Exported, path: Path) -> None:
    """Writes the file. The names of the classes are its metadata `class_names`, as JSON."""
    import onnx
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(exported.function(), [exported.signature], opset=OPSET)
    onnx.helper.set_model_props(model, {"class_names": json.dumps(exported.class_names)})
    onnx.save(model, str(path))
