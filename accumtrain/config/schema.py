"""The keys of a run, as dataclasses with their defaults. Those of a group of kinds are in the config.py of its room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

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
    Role,
    Word,
    parse_duration,
)
from accumtrain.models.config import ModelConfig, RevNetConfig
from accumtrain.optim.config import AdafactorConfig, OptimConfig
from accumtrain.optim.schedules import CosineConfig, ScheduleConfig
from accumtrain.registry import NameIn, NamesIn
from accumtrain.tasks.config import METRICS, TASKS, ClassifyConfig, LossConfig, TaskConfig
from accumtrain.train.config import BEST_STATE, NONE, STATES, TRACKERS

PRECISIONS = ("float32", "bfloat16", "float16", "float64")


@dataclass(kw_only=True)
class AccumConfig:
    """Keys of the accumulation.

    `steps`: micro-batches per update; more of them take less memory. auto: the smallest number that fits into the
    memory, found before the job begins.
    `reduction`: mean: an update uses the mean of its micro-batches' gradients. sum: it uses their sum, as some
    tutorials do; accum.steps then changes what is learned.
    `dtype`: type in which gradients are summed. float64 gives the same sums however micro-batches are spread over
    replicas, and takes twice the memory.
    """

    steps: Annotated[
        int | str, COUNT, Word("auto", "must be a number of micro-batches per update, or auto"), Role.RULE | Role.MEMORY
    ] = 1
    reduction: Annotated[str, OneOf(("mean", "sum")), Role.RULE] = "mean"
    dtype: Annotated[str, OneOf(("float32", "float64")), Role.MEMORY] = "float32"

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
    `patience`: the run ends after this many evaluations in a row without a new best; null: it never ends early.
    `monitor`: the value that decides which state is the best: loss, or a metric that is measured. null: the first of
    eval.metrics, or what the task names, which is accuracy for task=classify. Reports and sweeps rank by it, too.
    `min_delta`: the smallest improvement that train.patience counts as better. It does not change which state is the
    best.
    """

    epochs: Annotated[float | None, POSITIVE] = 25.0
    steps: Annotated[int | None, COUNT] = None
    patience: Annotated[int | None, COUNT] = None
    monitor: Annotated[str | None, Role.RULE | Role.BEST] = None
    min_delta: Annotated[float, NOT_NEGATIVE] = 0.0


@dataclass(kw_only=True)
class EvalConfig:
    """The times at which a run evaluates, and what it measures.

    `every`: updates from one evaluation to the next; epoch: after each epoch.
    `metrics`: metrics that are measured beside the loss. null: those of the task, or of a loss that has its own.
    train.monitor says which of them decides.
    """

    every: Annotated[
        int | str, COUNT, Word("epoch", "must be a number of updates or epoch; for example eval.every=epoch")
    ] = "epoch"
    metrics: Annotated[list[str] | None, NamesIn(METRICS), Role.RULE | Role.BEST] = None


@dataclass(kw_only=True)
class CheckpointConfig:
    """The times at which a run saves its state, and the number of states it keeps.

    `every`: updates from one checkpoint to the next.
    `keep`: number of latest checkpoints that are kept.
    `keep_hours`: also keep one checkpoint for every period of this many hours; null: none.
    """

    every: Annotated[int, COUNT] = 200
    keep: Annotated[int, COUNT] = 3
    keep_hours: Annotated[float | None, POSITIVE] = None


@dataclass(kw_only=True)
class LogConfig:
    """The records of a run.

    `every`: updates from one record of the metrics to the next. The progress line shows means over the same number of
    updates.
    `images`: number of training images, augmented, that TensorBoard shows; 0: none.
    `tracker`: service that also receives the records: none, mlflow, wandb, or one that you have registered.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    every: Annotated[int, COUNT] = 10
    images: Annotated[int, Range(0, 64)] = 4
    tracker: Annotated[str, NameIn(TRACKERS, (NONE,))] = NONE


@dataclass(kw_only=True)
class EmaConfig:
    """The moving average of the weights (EMA), by which a run is evaluated.

    `decay`: share of the average that each update keeps, such as 0.999; 0 turns the average off.
    """

    ROLE: ClassVar[Role] = Role.LEARNED | Role.MEASURED

    decay: Annotated[float, FRACTION] = 0.0


@dataclass(kw_only=True)
class LossScaleConfig:
    """The scale of the loss for precision=float16. After an overflow it is halved, and the update is skipped.

    `initial`: the scale of the first update.
    `growth_every`: the scale is doubled after this many updates in a row without an overflow.
    """

    initial: Annotated[float, Range(1, 2**64)] = 32768.0
    growth_every: Annotated[int, COUNT] = 2000


@dataclass(kw_only=True)
class RunConfig:
    """The folder of a run, and what stops it.

    `name`: name of the run's folder; null: made from the command. A command that names an existing run uses the run's
    settings for all keys that it does not give. These are not kept, and are always the command's own: device, debug,
    sweep, state, job, run.dir, run.resume and run.walltime.
    `dir`: the folder that holds the runs.
    `seed`: seed of the initial weights, of the order of the examples and of augmentation.
    `resume`: true: continue the run in the folder if there is one. false: refuse such a folder. force: continue even if
    keys have changed that decide what is learned.
    `walltime`: time after which the job will be killed, counted from its start, as in SLURM's --time. The run saves its
    state and stops before that. null: no limit.
    `hang_timeout`: seconds without progress after which a run counts as hung; 0 turns the watch off.
    `on_nonfinite`: what to do after an infinite or NaN update: stop, skip it, or rollback to the last checkpoint.
    `max_nonfinite`: number of skipped updates in a row, or of rollbacks, after which the run stops anyway.
    """

    ROLE: ClassVar[Role] = Role.SESSION

    name: Annotated[str | None, Role.SESSION | Role.COMMAND] = None
    dir: Annotated[str, LOCAL_PATH, Role.SESSION | Role.COMMAND] = "runs"
    seed: Annotated[int, Range(0, 2**31), Role.RULE] = 0
    resume: Annotated[bool | str, Word("force", "must be true, false or force"), Role.SESSION | Role.COMMAND] = True
    walltime: Annotated[str | int | None, Duration(), Role.SESSION | Role.COMMAND] = None
    hang_timeout: Annotated[float, NOT_NEGATIVE] = 1800.0
    on_nonfinite: Annotated[str, OneOf(("stop", "skip", "rollback"))] = "stop"
    max_nonfinite: Annotated[int, COUNT] = 10

    @property
    def walltime_seconds(self) -> float | None:
        """Return `walltime` in seconds; null is None. Raise ConfigError if it can't be read."""
        return None if self.walltime is None else parse_duration("run.walltime", self.walltime)


@dataclass(kw_only=True)
class BenchConfig:
    """The length of job=bench: it ends once both minimums are reached.

    `updates`: smallest number of updates.
    `seconds`: shortest time in seconds.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    updates: Annotated[int, COUNT] = 5
    seconds: Annotated[float, NOT_NEGATIVE] = 10.0


@dataclass(kw_only=True)
class RangeTestConfig:
    """The rates that job=lr tries. The rate rises by the same factor after each update.

    `updates`: number of updates of the test.
    `low`: the rate of the first update.
    `high`: the rate of the last update; must be above range_test.low.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    updates: Annotated[int, Range(2)] = 100
    low: Annotated[float, POSITIVE] = 1e-6
    high: Annotated[float, POSITIVE] = 10.0


@dataclass(kw_only=True)
class ReportConfig:
    """The runs that job=report compares.

    `runs`: names of the runs; empty: all in run.dir.
    """

    ROLE: ClassVar[Role] = Role.SESSION

    runs: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class PredictConfig:
    """The images or texts that job=predict answers for, and the place of its results.

    `input`: an image, a folder that is searched for images, or a glob. Of a run on texts: a file or a folder of texts,
    a glob, or an .npz file of tokens.
    `output`: a folder for predictions.csv and predictions.jsonl, or one such file; null: the run's folder.
    `top`: number of classes listed for each example, the most probable first. With task=masked_tokens: of tokens for
    each mask.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    input: Annotated[str | None, NotEmpty("say which images, predict.input=<file, folder or glob>"), LOCAL_PATH] = None
    output: Annotated[str | None, NotEmpty("leave it out to write into the run's folder"), LOCAL_PATH] = None
    top: Annotated[int, COUNT] = 3


@dataclass(kw_only=True)
class ExportConfig:
    """The file that job=export writes.

    `format`: format of the file.
    `quantize`: type of the weights in a TFLite file; none: float32. float16 halves the file of a large model, and int8
    quarters it. Both change the answers a little, and the job says by how much.
    `output`: the file to write, or the folder for a savedmodel; null: one in the run's folder.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    format: Annotated[str, OneOf(tuple(FORMATS.names))] = "savedmodel"
    quantize: Annotated[str, OneOf(tuple(QUANTIZED))] = "none"
    output: Annotated[str | None, NotEmpty("leave it out to write into the run's folder"), LOCAL_PATH] = None


@dataclass(kw_only=True)
class SweepConfig:
    """Settings of a sweep. They do not affect its runs.

    `fail_fast`: true: once a run fails, no further run of the sweep starts. false: the others go on.
    """

    ROLE: ClassVar[Role] = Role.COMMAND | Role.UNNAMED

    fail_fast: bool = False


@dataclass(kw_only=True)
class DebugConfig:
    """Settings for finding mistakes in a model.

    `eager`: run micro-steps without graphs, so that a debugger and prints work inside layers. This is slow. Jobs and
    settings that measure compiled graphs refuse it: job=bench, memory, plan and verify; accum.steps=auto; a number for
    model.memory; on a CPU, device.memory_limit_mb.
    `profile`: number of updates to profile for TensorBoard, after the first three of a session; null: none.
    """

    ROLE: ClassVar[Role] = Role.COMMAND

    eager: bool = False
    profile: Annotated[int | None, COUNT, Role.COMMAND | Role.SESSION] = None


@dataclass(kw_only=True)
class Config:
    """Everything that decides a run. `run(Config(...))` is what the command line does.

    `job`: what the command does.
    `batch_size`: examples per update, over all micro-batches and replicas.
    `precision`: type in which the model computes; weights stay float32 or wider.
    `task`: what the model learns to say of an example.
    `model`: the network.
    `optim`: the optimizer.
    `schedule`: a factor on the optimizer's rate at each update. Every length counts updates.
    `loss`: the loss function; None is that of the task.
    `data`: the images.
    `device`: the hardware that computes.
    `state`: the saved state that jobs such as evaluate, predict and export use: the best or the last.
    """

    job: Annotated[str, NameIn(JOBS), Role.COMMAND | Role.SESSION] = "train"
    batch_size: Annotated[int, COUNT, Role.RULE] = 64
    precision: Annotated[str, OneOf(PRECISIONS), Role.LEARNED | Role.MEASURED] = "float32"
    task: TaskConfig = field(default_factory=ClassifyConfig)
    model: ModelConfig = field(default_factory=RevNetConfig)
    optim: OptimConfig = field(default_factory=AdafactorConfig)
    schedule: ScheduleConfig = field(default_factory=CosineConfig)
    loss: LossConfig = None  # type: ignore[assignment]  # until __post_init__
    data: DataConfig = field(default_factory=DigitsConfig)
    device: DeviceConfig = field(default_factory=AutoConfig)
    state: Annotated[str, OneOf(STATES), Role.COMMAND] = BEST_STATE
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

    def __post_init__(self) -> None:
        self.loss = self.loss or TASKS[self.task.kind].loss()

    def with_accum_steps(self, steps: int) -> Config:
        return replace(self, accum=replace(self.accum, steps=steps))
