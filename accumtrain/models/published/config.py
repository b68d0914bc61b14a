"""The keys of a published model: the folder it is in, and what its config.json says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from accumtrain.errors import ConfigError
from accumtrain.fields import LOCAL_PATH, NOT_NEGATIVE, NotEmpty, Role
from accumtrain.models.config import STORE, ModelConfig
from accumtrain.models.published.architecture import Architecture
from accumtrain.models.published.families.known import read_architecture
from accumtrain.models.published.folder import CONFIG, Folder
from accumtrain.registry import Entry, required


@dataclass(kw_only=True)
class PretrainedConfig(ModelConfig):
    """A published transformer: BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ViT or DeiT, with the weights of its folder.

    `path`: folder with config.json and model.safetensors. A run begins with its weights, unless model.weights names
    others.
    `architecture`: the content of its config.json, which a run keeps. It is read from the folder.
    `kept_blocks`: number of blocks, the last ones, that keep all activations in spite of model.memory.
    """

    kind: str = "pretrained"
    path: Annotated[str, NotEmpty("give the folder of a published model"), LOCAL_PATH, Role.PLACE] = required("minilm")
    architecture: dict[str, Any] = field(default_factory=dict)
    kept_blocks: Annotated[int, NOT_NEGATIVE, Role.MEMORY] = 0

    @cached_property
    def found(self) -> Architecture:
        """The architecture of config.json. Raise ConfigError if it can't be read, or is not known here."""
        if self.architecture:
            return read_architecture(self.architecture, str(Path(self.path, CONFIG)))
        return Folder(Path(self.path)).architecture

    @property
    def inputs(self) -> str:
        return self.found.embedding.inputs

    @property
    def label(self) -> str:
        return Path(self.path).name

    @property
    def least_micro_batch(self) -> int:
        return 1

    def with_policy(self, memory: str) -> PretrainedConfig:
        return replace(self, memory=memory, kept_blocks=0 if memory == STORE else self.kept_blocks)

    def memory_steps(self) -> Sequence[ModelConfig]:
        least = replace(self, memory=self.policies[-1])
        return [*(replace(least, kept_blocks=count) for count in range(self.found.depth)), self.with_policy(STORE)]

    @property
    def kept_in_words(self) -> str:
        if not self.kept_blocks:
            return self.policy
        return f"{self.policy} with {self.kept_blocks} of {self.found.depth} blocks kept"

    def check(self) -> None:
        super().check()
        depth = self.found.depth
        if not self.kept_blocks:
            return
        self.check_kept("model.kept_blocks", self.kept_blocks)
        if self.kept_blocks > depth:
            raise ConfigError(f"model.kept_blocks={self.kept_blocks}: there are {depth} blocks; give no more")


PRETRAINED = Entry(PretrainedConfig, "accumtrain.models.published.build:build_pretrained")
