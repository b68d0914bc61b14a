"""Which values are allowed. Each rule's message names the key, the value, the rule and the remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.groups import (
    AUGMENTS,
    MEMORIES,
    NORMS,
    STEMS,
    WITHOUT_CUTS,
    AdafactorConfig,
    DataConfig,
    KerasModelConfig,
    ModelConfig,
    OptimConfig,
    ResNetConfig,
    RevNetConfig,
    StepConfig,
)
from accumtrain.config.names import show, suggest
from accumtrain.config.schema import JOBS, PRECISIONS, Config, DeviceConfig
from accumtrain.config.tpu import check_topology
from accumtrain.errors import ConfigError

TOGETHER = ("train", "evaluate")  # the jobs that several processes can share
RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,199}")


@dataclass(frozen=True)
class Range:
    """low <= value < high, or low < value with `above`."""

    low: float
    high: float = math.inf
    above: bool = False

    def holds(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value < self.high

    def __str__(self) -> str:
        low = f"must be {'above' if self.above else 'at least'} {self.low:g}"
        return low if self.high == math.inf else f"{low} and below {self.high:.10g}"


POSITIVE = Range(0, above=True)
COUNT = Range(1)
FRACTION = Range(0, 1)

RANGES = {
    "batch_size": COUNT,
    "accum.steps": COUNT,
    "train.epochs": POSITIVE,
    "train.steps": COUNT,
    "eval.every": COUNT,
    "checkpoint.every": COUNT,
    "checkpoint.keep": COUNT,
    "log.every": COUNT,
    "bench.updates": COUNT,
    "bench.seconds": Range(0),
    "ema.decay": FRACTION,
    "loss_scale.initial": Range(1, 2**64),
    "loss_scale.growth_every": COUNT,
    "run.seed": Range(0, 2**31),
    "device.virtual": COUNT,
    "device.memory_limit_mb": COUNT,
    "device.index": Range(0),
    "device.timeout": COUNT,
    "model.snap_bits": Range(0, 21),
    "optim.lr": POSITIVE,
    "optim.weight_decay": Range(0),
    "optim.clip_norm": Range(0),
    "optim.beta1": FRACTION,
    "optim.beta2": FRACTION,
    "optim.epsilon": POSITIVE,
    "optim.momentum": FRACTION,
    "optim.decay_exponent": POSITIVE,
    "optim.epsilon1": POSITIVE,
    "optim.epsilon2": POSITIVE,
    "optim.clip_threshold": POSITIVE,
    "schedule.warmup": Range(0),
    "schedule.final": FRACTION,
    "schedule.factor": POSITIVE,
    "schedule.timescale": COUNT,
    "data.image_size": COUNT,
    "data.channels": COUNT,
    "data.num_classes": Range(2),
    "data.train_examples": COUNT,
    "data.test_examples": COUNT,
    "data.test_fraction": Range(0, 1, above=True),
}

CHOICES: dict[str, Sequence[str]] = {
    "job": JOBS,
    "precision": PRECISIONS,
    "accum.dtype": ("float32", "float64"),
    "model.norm": NORMS,
    "model.memory": MEMORIES,
    "model.stem": STEMS,
    "data.augment": AUGMENTS,
}


def check(config: Config) -> None:
    """Raises ConfigError for the first rule that `config` breaks."""
    for key, choices in CHOICES.items():
        value = _get(config, key)
        if value is not None and value not in choices:
            raise ConfigError(f"{key}={show(value)}: no such choice; {suggest(value, choices)}")
    _check_words(config)
    for key, allowed in RANGES.items():
        value = _get(config, key)
        if isinstance(value, int | float) and not allowed.holds(value):
            raise ConfigError(f"{key}={show(value)}: {allowed}")
    _check_length(config)
    _check_model(config.model, config.precision)
    _check_optim(config.optim)
    _check_schedule(config.schedule)
    _check_data(config.data)
    _check_device(config.device)
    _check_multiworker(config)
    _check_run_name(config.run.name)
    steps = 1 if config.accum.steps == "auto" else config.accum.count
    known_replicas = (config.device.virtual or 1) * (len(config.device.workers) or 1)
    micro_batch_size(config.batch_size, steps, known_replicas)


def _get(config: Config, key: str) -> Any:
    """The value at a dotted key, None where this kind has no such key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _check_words(config: Config) -> None:
    """The keys that take a number or one word."""
    every, steps, xla = config.eval.every, config.accum.steps, config.device.xla
    if isinstance(every, str) and every != "epoch":
        raise ConfigError(f"eval.every={every}: must be a number of updates or epoch; for example eval.every=epoch")
    if isinstance(steps, str) and steps != "auto":
        raise ConfigError(f"accum.steps={steps}: must be a number of micro-batches per update, or auto")
    if isinstance(xla, str) and xla != "auto":
        raise ConfigError(f"device.xla={xla}: must be true, false or auto")


def _check_length(config: Config) -> None:
    if config.train.epochs is None and config.train.steps is None:
        raise ConfigError("train.epochs=null and train.steps=null: one must be set; for example train.epochs=20")


def _check_model(model: ModelConfig, precision: str) -> None:
    if model.memory == "reverse" and not isinstance(model, RevNetConfig):
        raise ConfigError(
            f"model.memory=reverse: {model.label} is not reversible; "
            "use model.memory=recompute, or a RevNet such as model=revnet38"
        )
    if isinstance(model, KerasModelConfig) and model.memory == "recompute" and model.name in WITHOUT_CUTS:
        raise ConfigError(
            f"model.memory=recompute: model.name={model.name} has no cut points between which computing again would "
            "save memory; use model.memory=store"
        )
    if isinstance(model, ResNetConfig):
        _check_stages(model)
        if precision == "float64" and model.norm == "batch":
            raise ConfigError("precision=float64: fused batch norm has no float64; use model.norm=group")


def _check_stages(model: ResNetConfig) -> None:
    units, filters = model.units, model.filters
    if not units or min(units) < 1:
        raise ConfigError(f"model.units={show(units)}: must hold one number of at least 1 per stage")
    if len(filters) != len(units) + 1:
        raise ConfigError(
            f"model.filters={show(filters)}: must hold {len(units) + 1} numbers, the stem's and one per stage of "
            f"model.units={show(units)}"
        )
    if min(filters) < 1:
        raise ConfigError(f"model.filters={show(filters)}: every number must be at least 1")
    if isinstance(model, RevNetConfig) and any(number % 2 for number in filters):
        raise ConfigError(f"model.filters={show(filters)}: must be even, each stream of a RevNet carries half of them")


def _check_optim(optim: OptimConfig) -> None:
    if optim.lr is None and not isinstance(optim, AdafactorConfig):
        raise ConfigError("optim.lr=null: only adafactor has a rate of its own; give one, for example optim.lr=1e-3")


def _check_schedule(schedule: Any) -> None:
    if isinstance(schedule, StepConfig):
        boundaries = schedule.boundaries
        if any(boundary < 1 for boundary in boundaries) or boundaries != sorted(set(boundaries)):
            raise ConfigError(
                f"schedule.boundaries={show(boundaries)}: must be increasing numbers of updates, each at least 1; "
                "for example [40000,60000]"
            )


def _check_data(data: DataConfig) -> None:
    for key, values in (("mean", data.mean), ("std", data.std)):
        if not values:
            raise ConfigError(f"data.{key}=[]: must hold one number, or one per channel")
    if len({len(data.mean), len(data.std)} - {1}) > 1:
        raise ConfigError(
            f"data.mean={show(data.mean)} and data.std={show(data.std)} differ in length; give one number per channel"
        )
    if any(value <= 0 for value in data.std):
        raise ConfigError(f"data.std={show(data.std)}: must be above 0, pixels are divided by it; 1 leaves them alone")
    for key in ("name", "path", "test_path"):
        if getattr(data, key, None) == "":
            raise ConfigError(f"data.{key} is empty; say where the data is, data.{key}=<value>")


def _check_device(device: DeviceConfig) -> None:
    check_topology(device.tpu_topology)
    if device.virtual is not None and device.kind not in ("auto", "cpu", "mirrored", "multiworker"):
        raise ConfigError(
            f"device.virtual={device.virtual}: splits the CPU into logical devices, not device={device.kind}; "
            "use device=mirrored, or leave device.virtual out"
        )
    if device.kind != "multiworker" and (device.workers or device.index is not None):
        key = "workers" if device.workers else "index"
        raise ConfigError(
            f"device.{key}={show(getattr(device, key))}: only device=multiworker has workers; "
            "add device=multiworker or leave it out"
        )
    if device.tpu is not None and device.kind != "tpu":
        raise ConfigError(f"device.tpu={device.tpu}: only device=tpu has an address; add device=tpu or leave it out")


def _check_multiworker(config: Config) -> None:
    if config.device.kind != "multiworker":
        return
    if config.job not in TOGETHER:
        raise ConfigError(f"device=multiworker: job={config.job} runs in one process; {' and '.join(TOGETHER)} do not")
    if config.accum.steps == "auto" or config.device.memory_limit_mb is not None:
        key = "accum.steps" if config.accum.steps == "auto" else "device.memory_limit_mb"
        raise ConfigError(
            f"{key}={show(_get(config, key))}: is tried out in processes of its own, which can't join the workers; "
            "find accum.steps by job=plan with batch_size divided by the number of workers, and give the number"
        )


def _check_run_name(name: str | None) -> None:
    if name is not None and not RUN_NAME.fullmatch(name):
        raise ConfigError(
            f"run.name={show(name)}: must be one folder's name of letters, digits and ._@- (at most 200); "
            "the folder above it is run.dir"
        )
