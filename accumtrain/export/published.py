"""Folders for PyTorch: of transformers, with config.json, tensors and tokenizer; and of PEFT, with adapters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from accumtrain.data.inputs.pixels import Pixels
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.text.vocabulary import BYTES
from accumtrain.errors import ConfigError, VerificationError
from accumtrain.export.formats import Exported
from accumtrain.models.published.adapter_files import AdapterFolder, write_adapter
from accumtrain.models.published.architecture import Architecture
from accumtrain.models.published.build import PublishedModel
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.export import export_arrays
from accumtrain.models.published.folder import CONFIG, PIXELS, WEIGHTS, Folder
from accumtrain.models.published.stored import StoredTensors
from accumtrain.tasks.config import ClassifyConfig, MultilabelConfig, RegressConfig
from accumtrain.tasks.regress import MEAN, STD

PROBLEMS = {  # by task, in the words of config.json
    ClassifyConfig.kind: "single_label_classification",
    MultilabelConfig.kind: "multi_label_classification",
    RegressConfig.kind: "regression",
}
TOKENIZER = "tokenizer.json"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json")  # of the folder that the run began with


def write_safetensors(exported: Exported, path: Path) -> None:
    """Write the folder. Numbers of task=regress are in the user's units: mean and std are in the last layer."""
    from safetensors.numpy import save_file  # an extra

    model, config = _find_model(exported)
    path.mkdir()
    save_file(_list_arrays(exported, model, config), path / WEIGHTS, metadata={"format": "pt"})
    _write_json(path / CONFIG, _describe(exported, config))
    shutil.copymode(path / CONFIG, path / WEIGHTS)  # the library writes for its user alone
    for name, value in exported.answer.texts().items():
        _write_json(path / f"{name}.json", value)
    if isinstance(exported.inputs, Pixels):
        _write_json(path / PIXELS, _describe_pixels(exported.inputs))
    if isinstance(exported.inputs, Tokens):
        if (tokenizer := exported.inputs.vocabulary.tokenizer) not in ("", BYTES):
            (path / TOKENIZER).write_text(tokenizer, encoding="utf-8")
        for file in (Path(config.path, name) for name in BESIDE):
            if file.is_file():
                shutil.copyfile(file, path / file.name)


def compare_safetensors(exported: Exported, path: Path) -> float:
    """Return 0.0: the tensors, read again, are those of the run to the bit. Raise VerificationError if not."""
    model, config = _find_model(exported)
    stored = StoredTensors(Folder(path))
    stored.check_shapes(config.found)
    return _compare({name: stored.read(name) for name in stored.shapes}, _list_arrays(exported, model, config))


def write_peft(exported: Exported, path: Path) -> None:
    """Write the adapters, and the head. Raise ConfigError if the run has none, or more is trained."""
    model, config = _find_model(exported)
    if exported.answer.config.task.kind == RegressConfig.kind:
        raise ConfigError(
            "export.format=peft: the head of task=regress tells numbers in standard deviations; use "
            "export.format=safetensors, which tells them in your units"
        )
    write_adapter(model, config, path)


def compare_peft(exported: Exported, path: Path) -> float:
    """Do the same as `compare_safetensors` with the adapters."""
    model, config = _find_model(exported)
    arrays = AdapterFolder(path).read_arrays(model, config.adapters)
    return _compare(arrays, {name: model.named[name].numpy() for name in model.trainable_paths})


def _compare(written: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    if odd := [name for name, array in expected.items() if not np.array_equal(written[name], array)]:
        raise VerificationError(f"{odd[0]} in what was written is not that of the run; nothing is kept")
    return 0.0


def _find_model(exported: Exported) -> tuple[PublishedModel, PretrainedConfig]:
    assert isinstance(exported.model, PublishedModel), "check_export refuses others"
    return exported.model, exported.model.config


def _list_arrays(exported: Exported, model: PublishedModel, config: PretrainedConfig) -> dict[str, np.ndarray]:
    arrays, answer = export_arrays(model), exported.answer
    if answer.config.task.kind == RegressConfig.kind:
        if config.found.next_head is not None:
            raise ConfigError(
                f"export.format=safetensors: the last layer of {config.found.name} has no bias, so it can't tell "
                "numbers in your units; use export.format=savedmodel or onnx"
            )
        mean, std = (np.array(answer.facts[name], np.float32) for name in (MEAN, STD))
        kernel, bias = (f"{config.found.class_head.output}.{part}" for part in ("weight", "bias"))
        arrays[kernel], arrays[bias] = arrays[kernel] * std[:, np.newaxis], arrays[bias] * std + mean
    return arrays


def _describe(exported: Exported, config: PretrainedConfig) -> dict[str, Any]:
    """Return the content of config.json: as it came, but for the head and what names its outputs."""
    content, found, task = dict(config.content), config.found, exported.answer.config.task.kind
    content |= {"dtype": "float32", "architectures": [_name_class(exported, found, task)]}
    content.pop("torch_dtype", None)  # the name of dtype in older files
    if task not in PROBLEMS:
        return content
    names = exported.answer.columns
    return {
        **content,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": PROBLEMS[task],
    }


def _name_class(exported: Exported, found: Architecture, task: str) -> str:
    """Return the name of the class of the whole model in transformers."""
    if task not in PROBLEMS:
        return f"{found.name}ForMaskedLM" if found.next_head is None else found.next_head.model
    of = "Image" if isinstance(exported.inputs, Pixels) else "Sequence"
    return f"{found.name}For{of}Classification"


def _describe_pixels(inputs: Pixels) -> dict[str, Any]:
    height, width, _ = inputs.shape
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / inputs.white,
        "do_normalize": True,
        "image_mean": list(inputs.mean),
        "image_std": list(inputs.std),
    }


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
