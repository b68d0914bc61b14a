"""The schema of a run. YAML in conf/ holds the values, these dataclasses hold names, types and rules.

A config group (model, optim, schedule, data, device) has one dataclass per `kind`. `from_mapping` turns what
Hydra composed into a `Config` once; everything below the command line sees dataclasses only. No TensorFlow here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from accumtrain.errors import ConfigError


def _find_conf_dir() -> Path:
    package = Path(__file__).resolve().parent
    inside_wheel = package / "conf"
    return inside_wheel if inside_wheel.is_dir() else package.parent / "conf"


CONF_DIR = _find_conf_dir()

JOBS = ("train", "evaluate")
PRECISIONS = ("float32", "bfloat16", "float64")
NORMS = ("batch", "group")
MEMORIES = ("store", "recompute", "reverse")
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
    """`name` is a builder of keras.applications; `args` are passed to it."""

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


@dataclass
class FolderConfig(DataConfig):
    """`path` holds either train/ and test/ (or val/), or the class folders themselves, split by `test_fraction`."""

    path: str
    test_fraction: float


@dataclass
class TfrecordConfig(DataConfig):
    """`path` and `test_path` are globs of TFRecord files of tf.train.Example."""

    path: str
    test_path: str
    image_feature: str
    label_feature: str
    num_classes: int


# --- the rest ---------------------------------------------------------------------------------------------------


@dataclass
class DeviceConfig:
    """`virtual`: logical CPU devices. `memory_limit_mb`: a hard limit. `tpu`: address or name, kind tpu only."""

    kind: str
    virtual: int | None
    memory_limit_mb: int | None
    tpu: str | None


@dataclass
class AccumConfig:
    steps: int


@dataclass
class TrainConfig:
    epochs: float | None
    steps: int | None


@dataclass
class EvalConfig:
    every: int | str


@dataclass
class CheckpointConfig:
    every: int
    keep: int


@dataclass
class LogConfig:
    every: int


@dataclass
class EmaConfig:
    """`decay` 0 turns the moving average of the weights off."""

    decay: float


@dataclass
class RunConfig:
    """`name` null is derived from the command (see runs.py). The run lives in `dir`/`name`."""

    name: str | None
    dir: str
    seed: int
    resume: bool


@dataclass
class Config:
    job: str
    batch_size: int
    precision: str
    model: Any
    optim: Any
    schedule: Any
    data: Any
    device: DeviceConfig
    accum: AccumConfig
    train: TrainConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    ema: EmaConfig
    run: RunConfig

    GROUPS: ClassVar[dict[str, dict[str, type]]] = {
        "model": {"lenet": LeNetConfig, "resnet": ResNetConfig, "revnet": RevNetConfig, "keras": KerasModelConfig},
        "optim": {
            "adam": AdamConfig,
            "adamw": AdamConfig,
            "sgd": SgdConfig,
            "adafactor": AdafactorConfig,
            "keras": KerasOptimConfig,
        },
        "schedule": {"constant": ScheduleConfig, "cosine": CosineConfig, "step": StepConfig, "rsqrt": RsqrtConfig},
        "data": {
            "digits": DigitsConfig,
            "synthetic": SyntheticConfig,
            "tfds": TfdsConfig,
            "folder": FolderConfig,
            "tfrecord": TfrecordConfig,
        },
        "device": {kind: DeviceConfig for kind in ("auto", "cpu", "gpu", "mirrored", "tpu")},
    }
