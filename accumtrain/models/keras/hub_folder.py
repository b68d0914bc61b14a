"""`PresetFolder`: the files of a preset of KerasHub, and what they tell of the data."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from accumtrain.errors import ConfigError
from accumtrain.fields import convert
from accumtrain.models.published.folder import PIXELS, Folder

CONVERTER = "image_converter.json"  # of KerasHub's own presets
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json")  # of published models
WHITE = 255.0


class _Factors(TypedDict):
    scale: float | list[float] | None
    offset: float | list[float] | None


class _Converter(TypedDict):
    config: _Factors


class PresetFolder(Folder):
    """The files of a preset: those of a published model, or those that KerasHub's save_to_preset writes."""

    @property
    def given(self) -> str:
        return f"model.preset={self.path}"

    @cached_property
    def files(self) -> list[Path]:
        found = sorted(path for ending in ("safetensors", "weights.h5") for path in self.path.glob(f"*.{ending}"))
        if not found:
            raise ConfigError(
                f"{self.given}: has no weights, which are files *.safetensors or *.weights.h5; fetch the whole folder"
            )
        return found

    def list_data_keys(self, given: Collection[str]) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        if self._has_tokenizer:
            keys["tokenizer"] = str(self.path)
        if isinstance(size := self.config.get("image_size"), int):
            keys["image_size"] = size
        if {"mean", "std"} <= set(given):
            return keys
        if (self.path / CONVERTER).exists():
            keys |= self._read_converter()
        elif (self.path / PIXELS).exists():
            keys |= self.read_pixels()
        return keys

    @property
    def tells_data(self) -> bool:
        """True if there is a file that tells the tokenizer, or the pixels, of the training."""
        return self._has_tokenizer or (self.path / CONVERTER).exists() or (self.path / PIXELS).exists()

    @property
    def _has_tokenizer(self) -> bool:
        return "model_type" in self.config and any((self.path / name).exists() for name in TOKENIZERS)

    def _read_converter(self) -> dict[str, list[float]]:
        """Return mean and std that do the same as KerasHub: pixels from 0 to 255, times scale, plus offset."""
        converter: _Converter = convert(_Converter, self.read_json(CONVERTER), str(self.path / CONVERTER))
        given = [converter["config"]["scale"] or 1.0, converter["config"]["offset"] or 0.0]
        factors = [factor if isinstance(factor, list) else [factor] for factor in given]
        channels = max(map(len, factors))
        if any(len(factor) not in (1, channels) for factor in factors):
            raise ConfigError(
                f"{self.given}: {CONVERTER} has {len(factors[0])} scales and {len(factors[1])} offsets; give data.mean "
                "and data.std"
            )
        scales, offsets = (factor * (channels // len(factor)) for factor in factors)
        std = [1.0 / (WHITE * scale) for scale in scales]
        return {"mean": [-offset * deviation for offset, deviation in zip(offsets, std, strict=True)], "std": std}


def is_folder(preset: str | Path) -> bool:
    """Return whether a preset is a folder. What is none is a handle."""
    return Path(preset).is_dir()
