"""The config groups model, optim, schedule and data: one dataclass per `kind`, names and types only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

NORMS = ("batch", "group")
MEMORIES = ("store", "recompute", "reverse")
STEMS = ("cifar", "imagenet")
WITHOUT_CUTS = ("NASNetLarge", "NASNetMobile")  # of keras.applications: every cell takes the two before it
AUGMENTS = ("none", "shift", "crop_flip", "inception")


# --- model ------------------------------------------------------------------------------------------------------


@dataclass
class ModelConfig:
    kind: str
    memory: str

    @property
    def label(self) -> str:
        return self.kind


@dataclass
class LeNetConfig(ModelConfig):
    @property
    def label(self) -> str:
        return "lenet5"


@dataclass
class ResNetConfig(ModelConfig):
    """Pre-activation residual network. `filters` are the stem's and each stage's, before a bottleneck's x4."""

    norm: str
    stem: str
    bottleneck: bool
    units: list[int]
    filters: list[int]

    @property
    def label(self) -> str:
        return f"resnet{(3 if self.bottleneck else 2) * sum(self.units) + 2}"


@dataclass
class RevNetConfig(ResNetConfig):
    """Reversible residual network. `filters` are totals of both streams."""

    snap_bits: int

    @property
    def label(self) -> str:
        return f"revnet{(6 if self.bottleneck else 4) * sum(self.units) + 2}"


@dataclass
class KerasModelConfig(ModelConfig):
    """`name` is a builder of keras.applications; `args` are passed to it. Those in WITHOUT_CUTS can't be recomputed."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.name


# --- optim and schedule -----------------------------------------------------------------------------------------


@dataclass
class OptimConfig:
    """`lr` null is allowed where the optimizer has a rate of its own. `clip_norm` 0 turns clipping off."""

    kind: str
    lr: float | None
    weight_decay: float
    clip_norm: float


@dataclass
class AdamConfig(OptimConfig):
    """kind `adam` (weight decay as L2 in the gradient) or `adamw` (decoupled)."""

    beta1: float
    beta2: float
    epsilon: float


@dataclass
class SgdConfig(OptimConfig):
    """Weight decay as L2 in the gradient, as the papers use it."""

    momentum: float
    nesterov: bool


@dataclass
class AdafactorConfig(OptimConfig):
    """`lr` null: the paper's relative step. `momentum` 0 keeps no first moment. Weight decay is decoupled."""

    decay_exponent: float
    epsilon1: float
    epsilon2: float
    clip_threshold: float
    scale_parameter: bool
    momentum: float


@dataclass
class KerasOptimConfig(OptimConfig):
    """`name` is a class of keras.optimizers; `args` are passed to it. Weight decay is decoupled."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class ScheduleConfig:
    """A factor on the optimizer's rate. `warmup` and every other length count updates. kind `constant`."""

    kind: str
    warmup: int


@dataclass
class CosineConfig(ScheduleConfig):
    """Half a cosine from 1 to `final` at the run's last update."""

    final: float


@dataclass
class StepConfig(ScheduleConfig):
    """Multiplied by `factor` at each of `boundaries`."""

    boundaries: list[int]
    factor: float


@dataclass
class RsqrtConfig(ScheduleConfig):
    """sqrt(timescale / max(step, timescale))."""

    timescale: int


# --- data -------------------------------------------------------------------------------------------------------


@dataclass
class DataConfig:
    """Pixels are scaled to 0..1, then (x - mean) / std. `image_size` null keeps the source's size."""

    kind: str
    augment: str
    image_size: int | None
    mean: list[float]
    std: list[float]

    @property
    def label(self) -> str:
        return self.kind


@dataclass
class DigitsConfig(DataConfig):
    pass


@dataclass
class SyntheticConfig(DataConfig):
    channels: int
    num_classes: int
    train_examples: int
    test_examples: int


@dataclass
class TfdsConfig(DataConfig):
    """`dir` null is tensorflow-datasets' own default directory."""

    name: str
    dir: str | None
    train_split: str
    test_split: str
    image_feature: str
    label_feature: str

    @property
    def label(self) -> str:
        return self.name


@dataclass
class FolderConfig(DataConfig):
    """`path` holds either train/ and test/ (or val/), or the class folders themselves, split by `test_fraction`."""

    path: str
    test_fraction: float

    @property
    def label(self) -> str:
        return PurePath(self.path).name or self.kind


@dataclass
class TfrecordConfig(DataConfig):
    """`path` and `test_path` are globs of TFRecord files of tf.train.Example."""

    path: str
    test_path: str
    image_feature: str
    label_feature: str
    num_classes: int
