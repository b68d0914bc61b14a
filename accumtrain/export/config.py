"""The keys of job=export, and its formats: the code of each, the end of its name, and the packages that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from accumtrain.fields import LOCAL_PATH, NotEmpty, OneOf, Role
from accumtrain.registry import Registry


@dataclass(frozen=True)
class ExportFormat:
    """An entry of the formats.

    Attributes:
        write: a function (exported, path) that writes the file, or "module:function".
        suffix: the end of the file's name. "" is a folder.
        mark: a file by which a folder is known as such an export.
        compare: a function (exported, path) that returns the largest difference of an answer from the run's, or
            "module:function".
        reads: the words for that.
        packages: modules that accumtrain does not bring along.
        extra: the extra of accumtrain that installs them.
        model_kinds: the kinds of models that the format can hold. Empty for all.
        others: the reason for it, and the remedy.
        cuts: it has operations that cut a window out of images of any size.
        quantizes: its weights can have another type than float32.
    """

    name: str
    write: str | Callable[..., Any]
    suffix: str = ""
    mark: str = ""
    reads: str = "loaded in a process without accumtrain"
    compare: str | Callable[..., float] = "accumtrain.export.compare:largest_difference"
    packages: tuple[str, ...] = ()
    extra: str = ""
    model_kinds: tuple[str, ...] = ()
    others: str = ""
    cuts: bool = True
    quantizes: bool = False


_SAFETENSORS = ExportFormat(
    "safetensors",
    "accumtrain.export.published:write_safetensors",
    mark="model.safetensors",
    compare="accumtrain.export.published:compare_safetensors",
    packages=("safetensors",),
    extra="pretrained",
    reads="read again, with the same bits",
    model_kinds=("pretrained",),
    others="is not of model=pretrained, which alone goes out so; choose export.format=savedmodel, or train that one",
)
FORMATS: Registry[ExportFormat] = Registry("export.format")
FORMATS.add(
    ExportFormat("savedmodel", "accumtrain.export.formats:write_saved_model", mark="saved_model.pb"),
    ExportFormat(
        "keras",
        "accumtrain.export.formats:write_keras",
        ".keras",
        model_kinds=("keras",),
        others="is not made of Keras's own layers, so a Keras file of it would not load without the package that has "
        "them; choose export.format=savedmodel, which Keras loads",
        cuts=False,
    ),
    ExportFormat("tflite", "accumtrain.export.formats:write_tflite", ".tflite", quantizes=True),
    ExportFormat(
        "onnx", "accumtrain.export.formats:write_onnx", ".onnx", packages=("tf2onnx", "onnxruntime"), extra="onnx"
    ),
    _SAFETENSORS,
    replace(
        _SAFETENSORS,
        name="peft",
        write="accumtrain.export.published:write_peft",
        mark="adapter_config.json",
        compare="accumtrain.export.published:compare_peft",
    ),
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
