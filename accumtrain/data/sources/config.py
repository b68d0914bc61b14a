"""The data sources and the kinds of inputs: their entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accumtrain.data.config import (
    CifarBinaryConfig,
    DataConfig,
    DigitsConfig,
    FolderConfig,
    IdxConfig,
    NpzConfig,
    SyntheticConfig,
    TableConfig,
    TextsConfig,
    TfdsConfig,
    TfrecordConfig,
)
from accumtrain.fields import CLASSES, LABELS, MASKS, NUMBERS, TOKENS
from accumtrain.registry import Entry, Registry


@dataclass(frozen=True)
class SourceEntry(Entry[DataConfig]):
    """A source. Its opener is (config, wanted) -> Source; `Wanted` is in data/source.py.

    Attributes:
        targets: the forms of targets that it can have.
        takes_seed: its opener is (config, seed) -> Source.
        openers: others for some forms of targets, by form.
    """

    targets: tuple[str, ...] = (CLASSES,)
    takes_seed: bool = False
    openers: Mapping[str, str | Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class InputEntry:
    """A kind of inputs. `build` is a subclass of `accumtrain.data.inputs.base.Inputs`, or "module:attribute"."""

    name: str
    build: str | Callable[..., Any]


INPUTS: Registry[InputEntry] = Registry("inputs")
INPUTS.add(
    InputEntry("pixels", "accumtrain.data.inputs.pixels:Pixels"),
    InputEntry("scenes", "accumtrain.data.inputs.scenes:Scenes"),
    InputEntry("tokens", "accumtrain.data.inputs.tokens:Tokens"),
    InputEntry("arrays", "accumtrain.data.inputs.arrays:Arrays"),
)

READERS = {  # of targets, by their form
    CLASSES: "accumtrain.data.targets.classes:ClassTargets",
    LABELS: "accumtrain.data.targets.labels:LabelTargets",
    NUMBERS: "accumtrain.data.targets.numbers:NumberTargets",
}

SOURCES: Registry[SourceEntry] = Registry("data.kind")
SOURCES.add(
    SourceEntry(DigitsConfig, "accumtrain.data.sources.builtin:open_digits"),
    SourceEntry(SyntheticConfig, "accumtrain.data.sources.builtin:open_synthetic"),
    SourceEntry(TfdsConfig, "accumtrain.data.sources.records.tfds:open_tfds"),
    SourceEntry(
        FolderConfig,
        "accumtrain.data.sources.folder:open_folder",
        (CLASSES, MASKS),
        openers={MASKS: "accumtrain.data.masks.source:open_masked_folder"},
    ),
    SourceEntry(TableConfig, "accumtrain.data.table.source:open_table", (*READERS, TOKENS)),
    SourceEntry(
        NpzConfig,
        "accumtrain.data.sources.npz:open_npz",
        (*READERS, TOKENS, MASKS),
        openers={MASKS: "accumtrain.data.masks.source:open_masked_arrays"},
    ),
    SourceEntry(CifarBinaryConfig, "accumtrain.data.sources.cifar:open_cifar_binary"),
    SourceEntry(IdxConfig, "accumtrain.data.sources.idx:open_idx"),
    SourceEntry(TfrecordConfig, "accumtrain.data.sources.records.tfrecord:open_tfrecord"),
    SourceEntry(TextsConfig, "accumtrain.data.sources.texts:open_texts", (CLASSES, TOKENS)),
)
