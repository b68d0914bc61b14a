"""The keys of a published model: the folder it is in, and what its config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.fields import COUNT, FRACTION, LOCAL_PATH, NOT_NEGATIVE, POSITIVE, NotEmpty, Role, format_value
from accumtrain.models.config import ANY, RULE, InBlocksConfig
from accumtrain.models.published.architecture import Architecture, DropoutRates
from accumtrain.models.published.folder import CONFIG, Folder
from accumtrain.registry import Entry, required

ALPHA = 8.0  # of adapters, as in PEFT


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model. They are equal if the weights of one are those of the other.

    Attributes:
        rank: of each.
        alpha: their outputs are multiplied by alpha / rank.
        layers: names of the linear layers that have one.
        dropout: the rate at which the inputs of adapters are dropped out.
    """

    rank: int
    alpha: float
    layers: frozenset[str]
    dropout: float = field(compare=False)


@dataclass(kw_only=True)
class PretrainedConfig(InBlocksConfig):
    """A published transformer with the weights of its folder: BERT, RoBERTa, XLM-RoBERTa, DistilBERT, GPT-2, Llama, ViT
    or DeiT.

    `path`: folder with config.json and model.safetensors. A run begins with its weights, unless model.weights names a
    run. A folder of adapters that PEFT has written, as model.weights, is loaded on top of them.
    `architecture`: the content of its config.json, which a run keeps. It is read from the folder.
    `kept_blocks`: number of blocks, the last ones, that keep all activations in spite of model.memory.
    `dropout`: rate of dropout in training, at all places where the family has it. null: as config.json says. 0: none.
    `lora_rank`: rank of trained adapters (LoRA; Hu et al. 2021, arXiv:2106.09685) of linear layers. The body, which is
    all but the head, is then frozen; model.freeze takes back what it names behind a -. null: none, and all is trained.
    `lora_alpha`: outputs of adapters are multiplied by lora_alpha / lora_rank; 8 as in PEFT.
    `lora_targets`: the layers that have an adapter: endings of their names in the file, such as query or
    attention.output.dense, or patterns of them. None: queries and values, or the one layer that computes both.
    `lora_dropout`: rate at which the inputs of adapters are dropped out in training.
    """

    reversible_twin: ClassVar[str] = "model=revencoder_tiny, which has no published weights"

    kind: str = "pretrained"
    path: Annotated[str, NotEmpty("give the folder of a published model"), LOCAL_PATH, Role.PLACE] = required("minilm")
    architecture: dict[str, Any] = field(default_factory=dict)
    kept_blocks: Annotated[int, NOT_NEGATIVE, Role.MEMORY] = 0
    dropout: Annotated[float | None, FRACTION, RULE] = None
    lora_rank: Annotated[int | None, COUNT] = None
    lora_alpha: Annotated[float, POSITIVE] = ALPHA
    lora_targets: list[str] = field(default_factory=list)
    lora_dropout: Annotated[float, FRACTION, RULE] = 0.0

    @property
    def lengths(self) -> str:
        return ANY

    @cached_property
    def found(self) -> Architecture:
        """The architecture of config.json. Raise ConfigError if it can't be read, or is not known here."""
        from accumtrain.models.published.families.known import read_architecture  # here, as most runs have none

        return read_architecture(self.content, str(Path(self.path, CONFIG)))

    @property
    def content(self) -> Mapping[str, Any]:
        """That of config.json. Raise ConfigError if it can't be read."""
        return self.architecture or Folder(Path(self.path)).config

    @property
    def inputs(self) -> str:
        return self.found.embedding.inputs

    @property
    def rates(self) -> DropoutRates:
        """The rates of dropout."""
        return self.found.dropout if self.dropout is None else self.found.dropout.with_rate(self.dropout)

    @property
    def adapters(self) -> Adapters | None:
        """The adapters; None if there are none. Raise ConfigError if model.lora_targets names no layer."""
        if self.lora_rank is None:
            return None
        inward = self.found.block.inward
        targets = self.lora_targets or [name.format("*") for name in (inward[0], inward[-1])]
        chosen = {name for target in targets for name in self._find_layers(target)}
        return Adapters(self.lora_rank, self.lora_alpha, frozenset(chosen), self.lora_dropout)

    def _find_layers(self, target: str) -> list[str]:
        """Return the names of the layers that a name, its ending or a pattern means. There is at least one."""
        names = self.found.list_linears()
        found = [name for name in names if fnmatchcase(name, target) or fnmatchcase(name, f"*.{target}")]
        if not found:
            endings = dict.fromkeys(name.rpartition(".")[2] for name in names)
            raise ConfigError(
                f"model.lora_targets={target}: no linear layer of the body has a name that ends so; they end in "
                f"{', '.join(endings)} (* stands for any text)"
            )
        return found

    @property
    def label(self) -> str:
        return Path(self.path).name

    @property
    def blocks(self) -> int:
        return self.found.depth

    @property
    def facts(self) -> list[str]:
        given = self.adapters
        adapted = [] if given is None else [f"LoRA of rank {given.rank} in {len(given.layers)} layers"]
        return [*super().facts, *adapted]

    def check(self) -> None:
        super().check()
        self._check_adapters()
        self.check_kept_blocks(of="")

    def _check_adapters(self) -> None:
        given = self.adapters
        if given is None:
            for key, default in (("lora_alpha", ALPHA), ("lora_targets", []), ("lora_dropout", 0.0)):
                if (value := getattr(self, key)) != default:
                    raise ConfigError(
                        f"model.{key}={format_value(value)}: there are no adapters; give model.lora_rank, such as "
                        f"model.lora_rank=8, or leave model.{key} out"
                    )
        elif given.rank > self.found.width:
            raise ConfigError(
                f"model.lora_rank={given.rank}: no matrix of {self.label} has a higher rank than {self.found.width}; "
                "give no more"
            )


PRETRAINED = Entry(PretrainedConfig, "accumtrain.models.published.build:build_pretrained")
