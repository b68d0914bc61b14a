"""Adapters in the files of the library PEFT: adapter_config.json and adapter_model.safetensors.

Names of tensors are those of the published file. PyTorch's transformers 5 gives the layers of ViT and DeiT others.
"""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from accumtrain.errors import ConfigError
from accumtrain.fields import POSITIVE, Constraint, convert, format_value, shorten
from accumtrain.models.published.architecture import Architecture, TokenHeadNames
from accumtrain.models.published.build import PublishedModel
from accumtrain.models.published.config import Adapters, PretrainedConfig
from accumtrain.models.published.families.rules import NO, SIZE, Always
from accumtrain.models.published.folder import ADAPTER_CONFIG, Folder
from accumtrain.models.published.lora import ADAPTER_ENDINGS
from accumtrain.models.published.stored import StoredTensors
from accumtrain.models.published.tensors import StoredArrays, Tensor
from accumtrain.runs.files import disk_errors, write_json

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of the names of all tensors


class _Empty(Constraint):
    """A mapping of layers to a rank or alpha of their own."""

    def check(self, key: str, value: Any) -> None:
        if value:
            raise ConfigError(
                f"{key}={shorten(format_value(value))}: only one rank and alpha for all layers is known here; take "
                "adapters that were trained with that"
            )


class _AdapterOptions(TypedDict, total=False):
    bias: Annotated[str, Always("none")]
    lora_bias: Annotated[bool, NO]
    use_dora: Annotated[bool, NO]
    use_rslora: Annotated[bool, NO]
    rank_pattern: Annotated[dict[str, Any], _Empty()]
    alpha_pattern: Annotated[dict[str, Any], _Empty()]


class _AdapterKeys(_AdapterOptions):
    """The keys of adapter_config.json that change what is computed."""

    peft_type: Annotated[str, Always("LORA")]
    r: Annotated[int, SIZE]
    lora_alpha: Annotated[float, POSITIVE]
    target_modules: list[str] | str


class AdapterFolder(Folder):
    """The files of the adapters of a published model, which model.weights names."""

    @property
    def given(self) -> str:
        return f"model.weights={self.path}"

    @cached_property
    def files(self) -> list[Path]:
        return [self.path / ADAPTER_WEIGHTS]

    def read_arrays(self, model: PublishedModel, adapters: Adapters | None) -> StoredArrays:
        """Return the arrays by the paths of a model's variables.

        Raises:
            ConfigError: the model has other adapters, or none.
            CheckpointError: a file can't be read.
        """
        stored = StoredTensors(self)
        self._check(stored, adapters)
        named = {path: Tensor(f"{_PREFIX}{tensor.name}", tensor.form) for path, tensor in model.tensors.items()}
        return StoredArrays(stored, named, prefix=_PREFIX)

    def _check(self, stored: StoredTensors, adapters: Adapters | None) -> None:
        keys: _AdapterKeys = convert(_AdapterKeys, self.read_json(ADAPTER_CONFIG), str(self.path / ADAPTER_CONFIG))
        rank, alpha, targets = keys["r"], keys["lora_alpha"], keys["target_modules"]
        names = [name.removeprefix(_PREFIX) for name in stored.shapes]
        layers = {name.removesuffix(ending) for name in names for ending in ADAPTER_ENDINGS if name.endswith(ending)}
        if adapters is None or (adapters.rank, adapters.alpha, adapters.layers) != (rank, alpha, layers):
            given = sorted(layers) if isinstance(targets, str) else targets
            raise ConfigError(
                f"{self.given}: has adapters of other layers, rank or alpha than the model; give model.lora_rank="
                f"{rank} model.lora_alpha={alpha:g} model.lora_targets={format_value(given)}"
            )


def write_adapter(model: PublishedModel, config: PretrainedConfig, folder: Path) -> None:
    """Write the adapters of a model into a new folder, and the layers beside them that are trained, as PEFT does.

    Raises:
        ConfigError: there are no adapters, or more is trained than such files can hold.
        CheckpointError: the folder can't be written.
    """
    from safetensors.numpy import save_file  # an extra

    adapters = config.adapters
    if adapters is None:
        raise ConfigError(f"{config.label} has no adapters, which model.lora_rank gives; use export.format=safetensors")
    modules = _list_whole_modules(model, config.found, adapters)
    tensors = [model.tensors[path] for path in model.trainable_paths]
    arrays = {
        f"{_PREFIX}{tensor.name}": np.ascontiguousarray(tensor.form.to_file(variable.numpy()))
        for tensor, variable in zip(tensors, model.trainable_variables, strict=True)
    }
    content = {
        "peft_type": "LORA",
        "task_type": _name_task(model, config),
        "base_model_name_or_path": config.path,
        "r": adapters.rank,
        "lora_alpha": int(adapters.alpha) if adapters.alpha.is_integer() else adapters.alpha,
        "lora_dropout": adapters.dropout,
        "target_modules": sorted(adapters.layers),
        "modules_to_save": modules,
        "bias": "none",
        "fan_in_fan_out": not config.found.turned,
        "inference_mode": True,
    }
    with disk_errors(folder):
        folder.mkdir()
        save_file(arrays, folder / ADAPTER_WEIGHTS, {"format": "pt"})
    write_json(folder / ADAPTER_CONFIG, content)
    shutil.copymode(folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS)  # the library writes for its user alone


def _name_task(model: PublishedModel, config: PretrainedConfig) -> str | None:
    """Return the word of PEFT for what the model tells; None of images."""
    if config.inputs == "pixels":
        return None
    head = f"{config.found.class_head.output}.weight"
    tells_classes = any(tensor.name == head for tensor in model.tensors.values())
    return "SEQ_CLS" if tells_classes or config.found.next_head is None else "CAUSAL_LM"


def _list_whole_modules(model: PublishedModel, found: Architecture, adapters: Adapters) -> list[str]:
    """Return the names of the modules beside the adapters that are trained. Raise ConfigError if one is so in part."""
    added, trained = model.added, set(model.trainable_paths)
    names = {path: tensor.name for path, tensor in model.tensors.items() if path not in added}
    of_head = found.token_head
    odd = [name for name in names.values() if isinstance(of_head, TokenHeadNames) and name == of_head.bias]
    modules = dict[str, str]()
    for path in (path for path in model.trainable_paths if path not in added):
        layer, _, _ = names[path].rpartition(".")
        modules[layer if found.is_of_body(layer) else layer.partition(".")[0]] = names[path]
    for module, name in modules.items():
        inside = [path for path, other in names.items() if other.startswith(f"{module}.")]
        if module in adapters.layers or not trained.issuperset(inside):
            odd.append(name)
    if odd:
        raise ConfigError(
            f"{odd[0]} is trained, and the files of PEFT hold adapters and whole layers of a classifier alone; use "
            "export.format=safetensors"
        )
    return sorted(modules)
