"""The keys of job=export, and its formats: the code of each, the end of its name, and the packages that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from accumtrain.fields import LOCAL_PATH, NotEmpty, OneOf, Role
from accumtrain.registry import Registry


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


@dataclass(kw_only=True)
class ExportConfig:
    """The file that job=export writes.

    `format`: format of the file.
    `quantize`: type of the weights in a TFLite file; none: float32. float16 halves the file of a large model, and int8
    quarters it. Both change the answers a little, and the job says by how much.
    `output`: the file to write, or the folder for a savedmodel; null: one in the run's folder.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    format: Annotated[str, OneOf(tuple(FORMATS.names))] = "savedmodel"
    quantize: Annotated[str, OneOf(tuple(QUANTIZED))] = "none"
    output: Annotated[str | None, NotEmpty("leave it out to write into the run's folder"), LOCAL_PATH] = None
