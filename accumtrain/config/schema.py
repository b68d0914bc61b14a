"""The keys of a run, as dataclasses with their defaults. The keys of the kinds of each group are in `kinds/`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from accumtrain.kinds.devices import AutoConfig, DeviceConfig
from accumtrain.kinds.exports import FORMATS
from accumtrain.kinds.losses import CrossEntropyConfig, LossConfig
from accumtrain.kinds.models import ModelConfig, RevNetConfig
from accumtrain.kinds.optimizers import AdafactorConfig, OptimConfig
from accumtrain.kinds.schedules import CosineConfig, ScheduleConfig
from accumtrain.kinds.sources import DataConfig, DigitsConfig
from accumtrain.kinds.trackers import NONE, TRACKERS
from accumtrain.kinds.values import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Duration,
    NotEmpty,
    OneOf,
    Range,
    Word,
    duration_seconds,
)

PRECISIONS = ("float32", "bfloat16", "float16", "float64")


@dataclass(kw_only=True)
class AccumConfig:
    """Keys of the accumulation.

    `steps`: micro-steps per update; auto is the smallest number that fits into the memory. A job replaces auto by the
    number before it begins.
    `reduction`: an update is made of the mean gradient of its micro-batches, or of their sum, as in some tutorials.
    With sum the number of micro-batches is part of what is learned.
    `dtype`: dtype of the sums. In float64 they do not depend on how micro-batches are spread over replicas, but take
    twice the memory.
    """

    steps: Annotated[int | str, COUNT, Word("auto", "must be a number of micro-batches per update, or auto")] = 4
    reduction: Annotated[str, OneOf(("mean", "sum"))] = "mean"
    dtype: Annotated[str, OneOf(("float32", "float64"))] = "float32"

    @property
    def is_auto(self) -> bool:
        """Whether the number of steps is still to be found."""
        return self.steps == "auto"

    @property
    def count(self) -> int:
        """`steps` as a number; auto must have been replaced."""
        assert isinstance(self.steps, int), "accum.steps=auto was not resolved"
        return self.steps


@dataclass(kw_only=True)
class TrainConfig:
    """The length of a run. `steps` is a number of updates and takes precedence over `epochs`. After `patience`
    evaluations in a row that are no better than the best, a run ends; null: never.
    """

    epochs: Annotated[float | None, POSITIVE] = 25.0
    steps: Annotated[int | None, COUNT] = None
    patience: Annotated[int | None, COUNT] = None


@dataclass(kw_only=True)
class EvalConfig:
    """An evaluation after `every` updates, or after each epoch."""

    every: Annotated[
        int | str, COUNT, Word("epoch", "must be a number of updates or epoch; for example eval.every=epoch")
    ] = "epoch"


@dataclass(kw_only=True)
class CheckpointConfig:
    """A checkpoint after `every` updates; the last `keep` of them are kept, and one for every `keep_hours`."""

    every: Annotated[int, COUNT] = 200
    keep: Annotated[int, COUNT] = 3
    keep_hours: Annotated[float | None, POSITIVE] = None


@dataclass(kw_only=True)
class LogConfig:
    """A record of the metrics after `every` updates.

    `images`: the first images of the run, as augmented, that TensorBoard shows; 0: none.
    `tracker`: a service that gets the records as well: none, mlflow or wandb.
    """

    every: Annotated[int, COUNT] = 10
    images: Annotated[int, Range(0, 64)] = 4
    tracker: Annotated[str, OneOf((NONE, *TRACKERS.names))] = NONE


@dataclass(kw_only=True)
class EmaConfig:
    """`decay` of the moving average of the weights; 0 turns it off."""

    decay: Annotated[float, FRACTION] = 0.0


@dataclass(kw_only=True)
class LossScaleConfig:
    """For precision=float16: the initial scale, and the number of updates in a row after which it is doubled."""

    initial: Annotated[float, Range(1, 2**64)] = 32768.0
    growth_every: Annotated[int, COUNT] = 2000


@dataclass(kw_only=True)
class RunConfig:
    """The folder of the run is `dir`/`name`. `name` null is derived from the command (see runs/names.py).

    `resume` false refuses a folder that holds a trained run; force continues it although values that decide what is
    learned have changed.
    `walltime`: the time after which the job will be killed, counted from its start, as for SLURM's --time; null: never.
    `hang_timeout`: seconds without progress after which a run counts as hung; 0 turns the watch off.
    `on_nonfinite`: what follows an infinite or NaN update: stop; skip it; or rollback to the last checkpoint.
    `max_nonfinite`: skipped updates in a row, or rollbacks, after which the run stops all the same.
    """

    name: str | None = None
    dir: str = "runs"
    seed: Annotated[int, Range(0, 2**31)] = 0
    resume: Annotated[bool | str, Word("force", "must be true, false or force")] = True
    walltime: Annotated[str | int | None, Duration()] = None
    hang_timeout: Annotated[float, NOT_NEGATIVE] = 1800.0
    on_nonfinite: Annotated[str, OneOf(("stop", "skip", "rollback"))] = "stop"
    max_nonfinite: Annotated[int, COUNT] = 10

    @property
    def walltime_seconds(self) -> float | None:
        """`walltime` in seconds; null is None. Raises ConfigError if it can't be read."""
        return None if self.walltime is None else duration_seconds("run.walltime", self.walltime)


@dataclass(kw_only=True)
class BenchConfig:
    """How long job=bench measures: at least `updates`, and until `seconds` have passed."""

    updates: Annotated[int, COUNT] = 5
    seconds: Annotated[float, NOT_NEGATIVE] = 10.0


@dataclass(kw_only=True)
class RangeTestConfig:
    """For job=lr: the rate rises from `low` to `high` over `updates` updates."""

    updates: Annotated[int, Range(2)] = 100
    low: Annotated[float, POSITIVE] = 1e-6
    high: Annotated[float, POSITIVE] = 10.0


@dataclass(kw_only=True)
class ReportConfig:
    """`runs`: names of the runs that job=report compares; empty: all in run.dir."""

    runs: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class PredictConfig:
    """What job=predict looks at, and where its answers go.

    `input`: an image, a folder that is searched for images, or a glob.
    `output`: a folder for predictions.csv and predictions.jsonl, or one such file; null: the run's folder.
    `top`: how many classes are told of each image, the most probable first.
    """

    input: Annotated[str | None, NotEmpty("say which images, predict.input=<file, folder or glob>")] = None
    output: Annotated[str | None, NotEmpty("leave it out to write into the run's folder")] = None
    top: Annotated[int, COUNT] = 3


@dataclass(kw_only=True)
class ExportConfig:
    """What job=export writes. `output`: the file, or the folder of a savedmodel; null: one in the run's folder."""

    format: Annotated[str, OneOf(tuple(FORMATS.names))] = "savedmodel"
    output: Annotated[str | None, NotEmpty("leave it out to write into the run's folder")] = None


@dataclass(kw_only=True)
class DebugConfig:
    """`eager`: micro-steps run without graphs, slowly, so that a debugger and prints work inside layers."""

    eager: bool = False


@dataclass(kw_only=True)
class Config:
    """Everything that decides a run. `run(Config(...))` is what the command line does."""

    job: str = "train"
    batch_size: Annotated[int, COUNT] = 64
    precision: Annotated[str, OneOf(PRECISIONS)] = "float32"
    model: ModelConfig = field(default_factory=RevNetConfig)
    optim: OptimConfig = field(default_factory=AdafactorConfig)
    schedule: ScheduleConfig = field(default_factory=CosineConfig)
    loss: LossConfig = field(default_factory=CrossEntropyConfig)
    data: DataConfig = field(default_factory=DigitsConfig)
    device: DeviceConfig = field(default_factory=AutoConfig)
    accum: AccumConfig = field(default_factory=AccumConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    run: RunConfig = field(default_factory=RunConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    range_test: RangeTestConfig = field(default_factory=RangeTestConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def with_accum_steps(self, steps: int) -> Config:
        """This configuration with another accum.steps."""
        return replace(self, accum=replace(self.accum, steps=steps))
