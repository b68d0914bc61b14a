"""The keys of a backbone of KerasHub."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from accumtrain.fields import LOCAL_PATH, NotEmpty, Role
from accumtrain.models.config import ONE, KerasLayersConfig
from accumtrain.registry import Entry, required


@dataclass(kw_only=True)
class KerasHubConfig(KerasLayersConfig):
    """A backbone of KerasHub with its weights, and a new layer of logits: of its pooled output, or of the mean.

    `preset`: folder of a published model or of a preset of KerasHub, or a handle that KerasHub downloads.
    `architecture`: the content of the folder's config.json, which a run keeps. A handle has none here.
    `args`: arguments of the backbone in the place of those of the preset, such as {dropout: 0.0}.
    """

    reversible_twin: ClassVar[str] = "model=revencoder_tiny or model=revvit_tiny, which have no published weights"

    kind: str = "kerashub"
    preset: Annotated[str, NotEmpty("give a folder or a handle"), LOCAL_PATH, Role.PLACE] = required("roberta")
    architecture: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return Path(self.preset).name

    @property
    def lengths(self) -> str:
        return ONE

    @property
    def inputs(self) -> None:
        return None

    @property
    def given(self) -> str:
        """The key and the value that name the preset."""
        return f"model.preset={self.preset}"


KERASHUB = Entry(KerasHubConfig, "accumtrain.models.keras.hub:build_kerashub")
