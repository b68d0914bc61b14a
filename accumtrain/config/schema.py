"""The keys of a run, as dataclasses with their defaults. Those of a group of kinds are in the config.py of its room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from accumtrain.config.jobs import JOBS
from accumtrain.data.config import DataConfig, DigitsConfig
from accumtrain.devices.config import AutoConfig, DeviceConfig
from accumtrain.export.config import FORMATS, QUANTIZED
from accumtrain.fields import (
    COUNT,
    FRACTION,
    LOCAL_PATH,
    NOT_NEGATIVE,
    POSITIVE,
    Duration,
    NotEmpty,
    OneOf,
    Range,
    Word,
    parse_duration,
)
from accumtrain.models.config import ModelConfig, RevNetConfig
from accumtrain.optim.config import AdafactorConfig, OptimConfig
from accumtrain.optim.schedules import CosineConfig, ScheduleConfig
from accumtrain.registry import NameIn, NamesIn
from accumtrain.train.config import BEST_STATE, METRICS, NONE, STATES, TRACKERS, CrossEntropyConfig, LossConfig

PRECISIONS = ("float32", "bfloat16", "float16", "float64")


@dataclass(kw_only=True)
class AccumConfig:
    """Keys of the accumulation.

    `steps`: micro-steps per update; more take less memory for the same batch. auto is the smallest number that fits
    into the memory; a job replaces it by the number before it begins.
    `reduction`: an update is made of the mean gradient of its micro-batches, or of their sum, as in some tutorials.
    With sum the number of micro-batches is part of what is learned.
    `dtype`: dtype of the sums. In float64 they do not depend on how micro-batches are spread over replicas, but take
    twice the memory.
    """

    steps: Annotated[int | str, COUNT, Word("auto", "must be a number of micro-batches per update, or auto")] = 1
    reduction: Annotated[str, OneOf(("mean", "sum"))] = "mean"
    dtype: Annotated[str, OneOf(("float32", "float64"))] = "float32"

    @property
    def is_auto(self) -> bool:
        return self.steps == "auto"

    @property
    def count(self) -> int:
        assert isinstance(self.steps, int), "accum.steps=auto was not resolved"
        return self.steps


@dataclass(kw_only=True)
class TrainConfig:
    """The length of a run.

    `epochs`: passes over the training examples; a fraction is allowed.
    `steps`: number of updates; takes precedence over train.epochs.
    `patience`: evaluations in a row that are no better than the best, after which a run ends; null: never.
    `monitor`: what decides which state is the best: loss, or a metric that is measured. null is the first of
    eval.metrics, which is the accuracy for most losses. Reports and sweeps rank by it, too.
    `min_delta`: the gain of what is monitored that patience takes for better. The best state needs any gain.
    """

    epochs: Annotated[float | None, POSITIVE] = 25.0
    steps: Annotated[int | None, COUNT] = None
    patience: Annotated[int | None, COUNT] = None
    monitor: str | None = None
    min_delta: Annotated[float, NOT_NEGATIVE] = 0.0


@dataclass(kw_only=True)
class EvalConfig:
    """The times at which a run evaluates, and what it measures.

    `every`: updates from one evaluation to the next; epoch: after each epoch.
    `metrics`: what is measured beside the loss. null: the metrics of the loss itself, the accuracy for most.
    train.monitor says which of them decides.
    """

    every: Annotated[
        int | str, COUNT, Word("epoch", "must be a number of updates or epoch; for example eval.every=epoch")
    ] = "epoch"
    metrics: Annotated[list[str] | None, NamesIn(METRICS)] = None


@dataclass(kw_only=True)
class CheckpointConfig:
    """The times at which a run saves its state, and the number of states it keeps.

    `every`: updates from one checkpoint to the next.
    `keep`: how many of the last checkpoints are kept.
    `keep_hours`: one more checkpoint is kept for every so many hours; null: none.
    """

    every: Annotated[int, COUNT] = 200
    keep: Annotated[int, COUNT] = 3
    keep_hours: Annotated[float | None, POSITIVE] = None


@dataclass(kw_only=True)
class LogConfig:
    """The records of a run.

    `every`: updates from one record of the metrics to the next. The progress shows means over as many.
    `images`: the first images of the run, as augmented, that TensorBoard shows; 0: none.
    `tracker`: a service that gets the records as well: none, mlflow, wandb or one that is registered.
    """

    every: Annotated[int, COUNT] = 10
    images: Annotated[int, Range(0, 64)] = 4
    tracker: Annotated[str, NameIn(TRACKERS, (NONE,))] = NONE


@dataclass(kw_only=True)
class EmaConfig:
    """The moving average of the weights (EMA), by which a run is evaluated.

    `decay`: what an update keeps of the average; 0 turns it off.
    """

    decay: Annotated[float, FRACTION] = 0.0


@dataclass(kw_only=True)
class LossScaleConfig:
    """The scale of the loss for precision=float16. It is halved when a window overflows, which is then skipped.

    `initial`: the scale of the first update.
    `growth_every`: updates in a row without an overflow after which the scale is doubled.
    """

    initial: Annotated[float, Range(1, 2**64)] = 32768.0
    growth_every: Annotated[int, COUNT] = 2000


@dataclass(kw_only=True)
class RunConfig:
    """The folder of a run, and what stops it.

    `name`: name of the run's folder; null is derived from the command. A command that names a run takes its settings
    from it, but for those that it gives.
    `dir`: the folder above it.
    `seed`: seed of the initial weights, of the order of the examples and of augmentation.
    `resume`: whether a trained run in the folder is continued. false refuses such a folder; force continues although
    values that decide what is learned have changed.
    `walltime`: the time after which the job will be killed, counted from its start, as for SLURM's --time; null: never.
    `hang_timeout`: seconds without progress after which a run counts as hung; 0 turns the watch off.
    `on_nonfinite`: what follows an infinite or NaN update: stop; skip it; or rollback to the last checkpoint.
    `max_nonfinite`: skipped updates in a row, or rollbacks, after which the run stops all the same.
    """

    name: str | None = None
    dir: Annotated[str, LOCAL_PATH] = "runs"
    seed: Annotated[int, Range(0, 2**31)] = 0
    resume: Annotated[bool | str, Word("force", "must be true, false or force")] = True
    walltime: Annotated[str | int | None, Duration()] = None
    hang_timeout: Annotated[float, NOT_NEGATIVE] = 1800.0
    on_nonfinite: Annotated[str, OneOf(("stop", "skip", "rollback"))] = "stop"
    max_nonfinite: Annotated[int, COUNT] = 10

    @property
    def walltime_seconds(self) -> float | None:
        """Return `walltime` in seconds; null is None. Raise ConfigError if it can't be read."""
        return None if self.walltime is None else parse_duration("run.walltime", self.walltime)


@dataclass(kw_only=True)
class BenchConfig:
    """The length of job=bench: as long as both keys ask for.

    `updates`: the least number of updates.
    `seconds`: the least time, in seconds.
    """

    updates: Annotated[int, COUNT] = 5
    seconds: Annotated[float, NOT_NEGATIVE] = 10.0


@dataclass(kw_only=True)
class RangeTestConfig:
    """The rates that job=lr tries. The rate rises by the same factor after each update.

    `updates`: number of updates of the test.
    `low`: the rate of the first update.
    `high`: the rate of the last update; must be above range_test.low.
    """

    updates: Annotated[int, Range(2)] = 100
    low: Annotated[float, POSITIVE] = 1e-6
    high: Annotated[float, POSITIVE] = 10.0


@dataclass(kw_only=True)
class ReportConfig:
    """The runs that job=report compares.

    `runs`: names of the runs; empty: all in run.dir.
    """

    runs: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class PredictConfig:
    """The images that job=predict classifies, and the place of its answers.

    `input`: an image, a folder that is searched for images, or a glob.
    `output`: a folder for predictions.csv and predictions.jsonl, or one such file; null: the run's folder.
    `top`: how many classes are told of each image, the most probable first.
    """

    input: Annotated[str | None, NotEmpty("say which images, predict.input=<file, folder or glob>"), LOCAL_PATH] = None
    output: Annotated[str | None, NotEmpty("leave it out to write into the run's folder"), LOCAL_PATH] = None
    top: Annotated[int, COUNT] = 3


@dataclass(kw_only=True)
class ExportConfig:
    """The file that job=export writes.

    `format`: format of the file.
    `quantize`: of a tflite file, the type of its weights; none: float32. With float16 the file of a large model takes
    half, with int8 a quarter. Both change the answers a little, and the job says by how much.
    `output`: the file, or the folder of a savedmodel; null: one in the run's folder.
    """

    format: Annotated[str, OneOf(tuple(FORMATS.names))] = "savedmodel"
    quantize: Annotated[str, OneOf(tuple(QUANTIZED))] = "none"
    output: Annotated[str | None, NotEmpty("leave it out to write into the run's folder"), LOCAL_PATH] = None


@dataclass(kw_only=True)
class SweepConfig:
    """Settings of a sweep, of which a run knows nothing.

    `fail_fast`: after the first run that fails no other one starts; false: the others go on.
    """

    fail_fast: bool = False


@dataclass(kw_only=True)
class DebugConfig:
    """Settings for finding mistakes in a model.

    `eager`: micro-steps run without graphs, slowly, so that a debugger and prints work inside layers.
    Refused with what looks at compiled ones: job=bench, memory, plan and verify, accum.steps=auto, a number for
    model.memory and, on a CPU, device.memory_limit_mb.
    `profile`: how many updates of a session, after its first three, are profiled for TensorBoard; null: none.
    """

    eager: bool = False
    profile: Annotated[int | None, COUNT] = None


@dataclass(kw_only=True)
class Config:
    """Everything that decides a run. `run(Config(...))` is what the command line does.

    `job`: what is done.
    `batch_size`: examples per update, over all micro-batches and replicas.
    `precision`: dtype in which the model computes; weights stay in float32 at least.
    `model`: the network.
    `optim`: the optimizer.
    `schedule`: a factor on the optimizer's rate at each update. Every length counts updates.
    `loss`: what each example contributes to the sum that is minimised.
    `data`: the images.
    `device`: what computes.
    `state`: the state of the run that jobs such as evaluate, predict and export use: the best, or the last.
    """

    job: Annotated[str, NameIn(JOBS)] = "train"
    batch_size: Annotated[int, COUNT] = 64
    precision: Annotated[str, OneOf(PRECISIONS)] = "float32"
    model: ModelConfig = field(default_factory=RevNetConfig)
    optim: OptimConfig = field(default_factory=AdafactorConfig)
    schedule: ScheduleConfig = field(default_factory=CosineConfig)
    loss: LossConfig = field(default_factory=CrossEntropyConfig)
    data: DataConfig = field(default_factory=DigitsConfig)
    device: DeviceConfig = field(default_factory=AutoConfig)
    state: Annotated[str, OneOf(STATES)] = BEST_STATE
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
    sweep: SweepConfig = field(default_factory=SweepConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def with_accum_steps(self, steps: int) -> Config:
        return replace(self, accum=replace(self.accum, steps=steps))
