"""The keys of a run, as dataclasses: YAML in conf/ holds the values, `rules` says which values are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from accumtrain.config.groups import (
    AdafactorConfig,
    AdamConfig,
    CosineConfig,
    DigitsConfig,
    FolderConfig,
    KerasModelConfig,
    KerasOptimConfig,
    LeNetConfig,
    ResNetConfig,
    RevNetConfig,
    RsqrtConfig,
    ScheduleConfig,
    SgdConfig,
    StepConfig,
    SyntheticConfig,
    TfdsConfig,
    TfrecordConfig,
)

JOBS = ("train", "evaluate", "verify", "plan", "bench", "report")
PRECISIONS = ("float32", "bfloat16", "float16", "float64")


@dataclass
class DeviceConfig:
    """`virtual`: logical CPU devices. `memory_limit_mb`: a hard limit. `tpu`: address or name, kind tpu only;
    `tpu_topology`: of the TPU that job=plan device=tpu compiles for.

    `xla`: compile micro-steps with XLA? auto: on a TPU only. Kind multiworker: `workers` (host:port of each, the chief
    first) and `index` (this process), where neither TF_CONFIG nor SLURM says so; `timeout`: seconds to wait for others.
    """

    kind: str
    virtual: int | None
    memory_limit_mb: int | None
    tpu: str | None
    xla: bool | str
    workers: list[str]
    index: int | None
    timeout: int
    tpu_topology: str = "v5e:2x2"


@dataclass
class AccumConfig:
    """`steps` auto: the smallest number that fits the memory. A job puts the number in its place before it begins.

    `dtype` float64: sums that do not depend on how the micro-batches are spread over replicas, in twice the memory.
    """

    steps: int | str
    dtype: str

    @property
    def count(self) -> int:
        """`steps`, once it is a number."""
        assert isinstance(self.steps, int), "accum.steps=auto was not settled"
        return self.steps


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
class LossScaleConfig:
    """precision=float16 only: the first scale, and the updates in a row after which it is doubled."""

    initial: float
    growth_every: int


@dataclass
class RunConfig:
    """`name` null is derived from the command (see runs.py). The run lives in `dir`/`name`."""

    name: str | None
    dir: str
    seed: int
    resume: bool


@dataclass
class BenchConfig:
    """How long job=bench measures: at least `updates`, and until `seconds` have passed."""

    updates: int
    seconds: float


@dataclass
class ReportConfig:
    """`runs`: names of the runs that job=report compares; empty: all in run.dir."""

    runs: list[str]


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
    loss_scale: LossScaleConfig
    run: RunConfig
    bench: BenchConfig
    report: ReportConfig

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
        "device": dict.fromkeys(("auto", "cpu", "gpu", "mirrored", "multiworker", "tpu"), DeviceConfig),
    }
