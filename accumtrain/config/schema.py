"""All keys of a run: `Config`. The keys of each group are in the config.py of their room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from accumtrain.config.jobs import JOBS
from accumtrain.data.config import DataConfig, DigitsConfig
from accumtrain.devices.config import AutoConfig, DeviceConfig
from accumtrain.engine.config import AccumConfig, EmaConfig, LossScaleConfig
from accumtrain.export.config import ExportConfig
from accumtrain.fields import COUNT, OneOf, Role
from accumtrain.measure.config import BatchTestConfig, BenchConfig, RangeTestConfig
from accumtrain.models.config import ModelConfig, RevNetConfig
from accumtrain.optim.config import AdafactorConfig, OptimConfig
from accumtrain.optim.schedules import CosineConfig, ScheduleConfig
from accumtrain.registry import NameIn
from accumtrain.runs.config import BEST_STATE, STATES, ReportConfig, RunConfig, SweepConfig
from accumtrain.tasks.config import TASKS, ClassifyConfig, LossConfig, TaskConfig
from accumtrain.train.config import CheckpointConfig, DebugConfig, EvalConfig, LogConfig, PredictConfig, TrainConfig

PRECISIONS = ("float32", "bfloat16", "float16", "float64")


@dataclass(kw_only=True)
class Config:
    """Everything that decides a run. `run(Config(...))` is what the command line does.

    `job`: what the command does.
    `batch_size`: examples per update, over all micro-batches and replicas; of a run with a batch_ramp, at first.
    `batch_ramp`: larger batches for the later training, such as {0.25:128,0.5:256}: from each share of its examples
    on, updates are of so many. They are multiples of batch_size, and are made by more micro-batches of the same size.
    `precision`: type in which the model computes; weights stay float32 or wider.
    `task`: what the model learns to say of an example.
    `model`: the network.
    `optim`: the optimizer.
    `schedule`: a factor on the optimizer's rate at each update. Every length counts updates.
    `loss`: the loss function; None is that of the task.
    `data`: the examples.
    `device`: the hardware that computes.
    `state`: the saved state that jobs such as evaluate, predict and export use: the best or the last.
    """

    job: Annotated[str, NameIn(JOBS), Role.COMMAND | Role.SESSION] = "train"
    batch_size: Annotated[int, COUNT, Role.RULE] = 64
    batch_ramp: Annotated[dict[str, int], Role.RULE] = field(default_factory=dict)
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
    batch_test: BatchTestConfig = field(default_factory=BatchTestConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def __post_init__(self) -> None:
        self.loss = self.loss or TASKS[self.task.kind].loss()

    @property
    def has_half_lives(self) -> bool:
        """Means of the optimizer or of the weights follow the batch."""
        return bool(self.optim.half_lives) or self.ema.half_life is not None

    def with_accum_steps(self, steps: int) -> Config:
        return replace(self, accum=replace(self.accum, steps=steps))
