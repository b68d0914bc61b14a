"""`Folder`: the files of a published model. Nothing in them is executed.

config.json describes the model. Its tensors are in model.safetensors, or in the shards that
model.safetensors.index.json lists.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypedDict

from accumtrain.errors import ConfigError, first_line
from accumtrain.fields import convert
from accumtrain.models.published.architecture import Architecture, TokenEmbedding
from accumtrain.models.published.families.rules import Always

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PIXELS, ADAPTER_CONFIG = "preprocessor_config.json", "adapter_config.json"
_LARGEST_JSON = 64 * 2**20  # bytes; an index of the largest published models has 100 KB
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class _ShardIndex(TypedDict):
    weight_map: dict[str, str]


class _PixelOptions(TypedDict, total=False):
    do_normalize: Annotated[bool, Always(True)]
    do_rescale: Annotated[bool, Always(True)]


class _Pixels(_PixelOptions):
    """The images that a model was trained on: (x - mean) / std of pixels x from 0 to 1."""

    image_mean: list[float]
    image_std: list[float]


@dataclass(frozen=True)
class Folder:
    """The files of a published model.

    Attributes:
        path: of the folder.
    """

    path: Path

    @property
    def given(self) -> str:
        return f"model.path={self.path}"

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json. Raise ConfigError if there is none that can be read."""
        return self.read_json(CONFIG)

    @cached_property
    def architecture(self) -> Architecture:
        """The architecture that config.json describes. Raise ConfigError if it is not known here."""
        from accumtrain.models.published.families.known import read_architecture  # here, as most runs have none

        return read_architecture(self.config, str(self.path / CONFIG))

    def list_data_keys(self, given: Collection[str]) -> dict[str, Any]:
        """Return the keys of data that the model expects: the tokenizer of texts, or size, mean and std of images.

        Args:
            given: the keys that the command gives, which the folder need not tell.

        Raises:
            ConfigError: the folder does not tell them.
        """
        embedding = self.architecture.embedding
        if isinstance(embedding, TokenEmbedding):
            return {"tokenizer": str(self.path)}
        sides = [embedding.height, embedding.width]
        keys: dict[str, Any] = {"image_size": sides[0] if sides[0] == sides[1] else sides}
        if {"mean", "std"} <= set(given):
            return keys
        if not (self.path / PIXELS).exists():
            raise ConfigError(
                f"{self.given}: has no {PIXELS}, which tells the pixels that it was trained on; give data.mean and "
                "data.std, such as data.mean=[0.5] data.std=[0.5]"
            )
        return keys | self.read_pixels()

    def read_pixels(self) -> dict[str, list[float]]:
        """Return mean and std of the pixels that the model was trained on. Raise ConfigError for other ways."""
        pixels: _Pixels = convert(_Pixels, self.read_json(PIXELS), str(self.path / PIXELS))
        return {"mean": pixels["image_mean"], "std": pixels["image_std"]}

    def read_json(self, name: str) -> Mapping[str, Any]:
        """Return the content of a JSON file. Raise ConfigError if it can't be read, or is no mapping."""
        file = self.path / name
        if not self.path.is_dir():
            raise ConfigError(
                f"{self.given} is no folder; {self.suggest_near()}give one with {CONFIG} and {WEIGHTS}, as a "
                "published model has them"
            )
        self.check_is_file(file)
        if file.stat().st_size > _LARGEST_JSON:
            raise ConfigError(f"{self.given}: {file} has over {_LARGEST_JSON >> 20} MB; fetch the file again")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{self.given}: {file} is no JSON ({first_line(error)}); fetch the file again") from error
        if not isinstance(content, Mapping):
            raise ConfigError(f"{self.given}: {file} holds no mapping; fetch the file again")
        return content

    def suggest_near(self) -> str:
        """Return the question for a folder with a name like this one; empty if there is none."""
        parent = self.path.parent
        names = [each.name for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []
        near = difflib.get_close_matches(self.path.name, names, n=1)
        return f"did you mean {parent / near[0]}? Or " if near else ""

    def check_is_file(self, file: Path) -> None:
        """Raise ConfigError if a file of the folder is not there. It is not opened, as it may be a FIFO."""
        if not file.is_file():
            raise ConfigError(f"{self.given}: {file} is not there; fetch the whole folder of the model")

    @property
    def _class_name(self) -> str:
        """The name of the class of transformers that reads the whole model, its head included."""
        named = self.config.get("architectures")
        first = named[0] if isinstance(named, list) and named else None
        return first if isinstance(first, str) and first.isidentifier() else "AutoModel"

    @cached_property
    def files(self) -> list[Path]:
        """The files of tensors.

        Raises:
            ConfigError: there are none, or the index names a file elsewhere.
        """
        if (self.path / INDEX).exists():
            index: _ShardIndex = convert(_ShardIndex, self.read_json(INDEX), str(self.path / INDEX))
            names = sorted(set(index["weight_map"].values()))
            if odd := [name for name in names if not name or Path(name).name != name]:
                raise ConfigError(
                    f"{self.given}: {INDEX} names {odd[0]}, which is no file of the folder; fetch the folder again"
                )
            return [self.path / name for name in names]
        pickles = [name for name in _PICKLES if (self.path / name).exists()]
        if pickles and not (self.path / WEIGHTS).exists():
            raise ConfigError(
                f"{self.given}: {pickles[0]} is a pickle, which can run any code, and is not read; convert it where "
                f'PyTorch is: python -c "from transformers import {self._class_name} as M; '
                f"M.from_pretrained('{self.path}').save_pretrained('{self.path}')\""
            )
        return [self.path / WEIGHTS]
