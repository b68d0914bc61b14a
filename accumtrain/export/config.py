"""The formats of job=export: the code of each, the end of its name, and the packages that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from accumtrain.errors import ConfigError
from accumtrain.registry import Registry
from accumtrain.tasks.config import check_answers


@dataclass(frozen=True)
class ExportFormat:
    """An entry of the formats.

    Attributes:
        write: a function (exported, path) that writes the file, or "module:function".
        suffix: the end of the file's name. "" is a folder.
        packages: modules that accumtrain does not bring along. The extra `accumtrain[name]` installs them.
        model_kinds: the kinds of models that the format can hold. Empty for all.
        cuts: it has operations that cut a window out of images of any size.
        quantizes: its weights can have another type than float32.
    """

    name: str
    write: str | Callable[..., Any]
    suffix: str = ""
    packages: tuple[str, ...] = ()
    model_kinds: tuple[str, ...] = ()
    cuts: bool = True
    quantizes: bool = False


FORMATS: Registry[ExportFormat] = Registry("export.format")
FORMATS.add(
    ExportFormat("savedmodel", "accumtrain.export.formats:write_saved_model"),
    ExportFormat("keras", "accumtrain.export.formats:write_keras", ".keras", model_kinds=("keras",), cuts=False),
    ExportFormat("tflite", "accumtrain.export.formats:write_tflite", ".tflite", quantizes=True),
    ExportFormat("onnx", "accumtrain.export.formats:write_onnx", ".onnx", packages=("tf2onnx", "onnxruntime")),
)

# The types of weights (export.quantize), each with the largest difference of an answer from the run's.
QUANTIZED = {"none": 1e-3, "float16": 2e-2, "int8": 0.1}


def check_export(config: Any) -> None:
    """Raise ConfigError if the run's model can't be exported in this format, or a package for it is missing."""
    check_answers(config)
    chosen, model, output = FORMATS[config.export.format], config.model, config.export.output
    if chosen.model_kinds and model.kind not in chosen.model_kinds:
        raise ConfigError(
            f"export.format={chosen.name}: {model.label} is made of TensorFlow operations, not of Keras layers, so a "
            "Keras file of it would not load without accumtrain; choose export.format=savedmodel, which Keras loads"
        )
    if config.data.augment == "inception" and not chosen.cuts:
        raise ConfigError(
            f"export.format={chosen.name}: data.augment=inception looks at the middle of an image, which no "
            "Keras layer cuts out of images of any size; choose export.format=savedmodel"
        )
    if missing := [name for name in chosen.packages if find_spec(name) is None]:
        raise ConfigError(
            f"export.format={chosen.name}: needs {' and '.join(missing)}; pip install 'accumtrain[{chosen.name}]'"
        )
    if config.export.quantize != "none" and not chosen.quantizes:
        able = " or ".join(f"export.format={name}" for name in FORMATS.names if FORMATS[name].quantizes)
        raise ConfigError(
            f"export.quantize={config.export.quantize}: export.format={chosen.name} is written in float32 alone; "
            f"choose {able}, or leave export.quantize out"
        )
    if output is not None and not output.endswith(chosen.suffix):
        raise ConfigError(f"export.output={output}: must end in {chosen.suffix} with export.format={chosen.name}")
