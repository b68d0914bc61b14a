"""From a configuration to the model, the losses and metrics, the optimizer and the `Window` of a run."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.arithmetic import divisors, micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, warn
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.source import Dataset
from accumtrain.devices.found import Devices
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.losses import LossScale
from accumtrain.engine.window import Window
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import format_value, shorten
from accumtrain.models.build import build_model, find_rate_factors
from accumtrain.models.config import LEAST_WITH_BATCH_NORM, MODELS, ResNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.config import OPTIMIZERS, OptimConfig
from accumtrain.optim.optimizer import Optimizer
from accumtrain.optim.running_mean import HalfLife
from accumtrain.registry import load, module_of
from accumtrain.runs.names import folder_of
from accumtrain.runs.schema import Manifest
from accumtrain.tasks.config import TASKS
from accumtrain.tasks.objective import Objective
from accumtrain.train.tell.remedies import allowed_remedy

ENOUGH = 4  # examples of a micro-batch, for batch norm
SMALLEST_WEIGHT = 2  # bytes


def build_optimizer(config: OptimConfig, told: float = 1.0) -> Optimizer:
    """Return the optimizer of `config.kind`, before `Optimizer.build`.

    Args:
        told: what an example counts in half-lives, as `Objective.told_per_example` says.

    Raises:
        ConfigError: keras.optimizers does not know optim.name or optim.args, or accumtrain has a key of its own for it.
    """
    means = {name: HalfLife(value, told, f"optim.{key}") for name, (key, value) in config.half_lives.items()}
    optimizer: Optimizer = load(OPTIMIZERS[config.kind].build)(**config.arguments | means)
    return optimizer


def model_for(config: Config, data: Dataset, *, draws: bool = True) -> Model:
    """Build the model of a run, with its initial weights. Call it inside the strategy's scope.

    Args:
        draws: kernels are drawn; if not, they are zeros.

    Raises:
        ConfigError: the model can't be built for the images of this data.
    """
    return build_model(config.model, spec_for(config, data.inputs, data.num_classes, draws=draws))


def spec_for(config: Config, inputs: Inputs, outputs: int, *, precision: str = "", draws: bool = False) -> ModelSpec:
    """Return the spec of the model of a run.

    Args:
        outputs: number of classes, labels or numbers; where tokens are told that of the vocabulary.
        precision: in the place of that of the run.
    """
    return ModelSpec(
        inputs.shape,
        outputs,
        precision or config.precision,
        config.run.seed,
        draws,
        inputs=inputs.kinds(),
        vocabulary=inputs.vocabulary_size,
        of_bytes=inputs.of_bytes,
        adds_mask=inputs.adds_mask,
        tells=TASKS[config.task.kind].tells,
    )


def moving_average(config: Config, model: Model, told: float = 1.0) -> MovingAverage | None:
    """Return the average of the weights of a run, if there is one. `told` is as of `build_optimizer`."""
    keys = config.ema
    if not keys.is_kept:
        return None
    decay = keys.decay if keys.half_life is None else HalfLife(keys.half_life, told, "ema.half_life")
    return MovingAverage(model.trainable_variables, decay)


def build_window(
    config: Config,
    objective: Objective,
    total_steps: int,
    strategy: tf.distribute.Strategy,
    *,
    model: Model | None = None,
    draws: bool = True,
) -> Window:
    """Build all state of a run, at update 0.

    Args:
        model: of `model_for`, with the weights to begin with; None calls it.
        draws: kernels are drawn. If not, they are zeros, for a state that is restored or only measured.

    Raises:
        ConfigError: the model can't be built for the images of this data, or the loss does not fit the classes. Or the
            optimizer is unknown, or optim.rates or optim.layer_decay do not fit the model.
    """
    told = objective.told_per_example if config.has_half_lives else 1.0
    with strategy.scope():
        model = model or model_for(config, objective.stored, draws=draws)
        optimizer = build_optimizer(config.optim, told)
        if config.optim.rates or config.optim.layer_decay < 1:
            rates = find_rate_factors(config.optim.rates, model.trainable_paths, config.optim.layer_decay)
            optimizer.scale_rates(rates)
        scale = config.loss_scale
        window = Window(
            model,
            optimizer,
            loss=objective.loss,
            metrics=objective.means,
            schedule=config.schedule.build(total_steps, tf.float64 if config.precision == "float64" else tf.float32),
            clip_norm=config.optim.clip_norm,
            adaptive_clip=config.optim.adaptive_clip,
            ema=moving_average(config, model, told),
            loss_scale=LossScale(scale.initial, scale.growth_every) if config.precision == "float16" else None,
            seed=config.run.seed,
            micro_steps=config.accum.count,
            reduction=config.accum.reduction,
            sum_dtype=tf.float64 if config.accum.dtype == "float64" else None,
            measures_noise=config.log.noise,
        )
        for batch in (*config.batch_ramp.values(), config.batch_size):  # each is checked, and the first one is last
            window.follow(0, batch, config.accum.count)
        return window


def check_micro_batch(config: Config, model: Model, replicas: int) -> None:
    """Warn of micro-batches that are small for the model's batch norm. A frozen one takes no statistics of them.

    Args:
        config: with accum.steps as a number.
        replicas: number of replicas that share the examples of an update.

    Raises:
        ConfigError: they are of one example. Or there is one, and the noise of the gradient is to be measured.
    """
    _check_noise(config, replicas)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, replicas)
    if not model.norms or micro_batch >= ENOUGH:
        return
    shared = f" x {replicas} replicas" if replicas > 1 else ""
    small = f"batch_size={config.batch_size}, accum.steps={config.accum.count}{shared}: micro-batches of {micro_batch}"
    remedies = "; or ".join(_remedies(config, replicas))
    if micro_batch < LEAST_WITH_BATCH_NORM:
        raise ConfigError(
            f"{small}, so batch norm takes the statistics of a single example, and what is learned with these fails "
            f"in evaluation: {remedies}"
        )
    warn(f"{small} give batch norm poor statistics, so that evaluations may be worse than training: {remedies}")


def _check_noise(config: Config, replicas: int) -> None:
    if config.log.noise and config.accum.count * replicas == 1:
        raise ConfigError(
            "log.noise=true: accum.steps=1 on one device makes one micro-batch of an update, which can't be compared "
            "with another; use accum.steps=2 or more"
        )


def _remedies(config: Config, replicas: int) -> list[str]:
    examples = config.batch_size // replicas
    size = next((size for size in divisors(examples) if size >= ENOUGH), None)
    larger = f"batch_size={ENOUGH * replicas} accum.steps=1" if size is None else f"accum.steps={examples // size}"
    leanest = config.model.policies[-1]
    room = "" if config.model.memory == leanest else f", for which model.memory={leanest} makes room"
    has_key = isinstance(config.model, ResNetConfig)
    others = allowed_remedy("model.norm=group", "", config, {"model": {"norm": "group"}}) if has_key else []
    return [f"give {larger}{room}", *(f"use {remedy.override}" for remedy in others)]


def agree_on_steps(config: Config, devices: Devices) -> Config:
    """Return `config` with accum.steps of the worker with the least memory, which needs the most micro-steps."""
    if devices.workers == 1:
        return config
    found = devices.values_of_workers(config.accum.count)
    if min(found) < max(found):
        say(f"accum.steps={max(found)}, which worker {found.index(max(found))} needs")
    return config.with_accum_steps(max(found))


def check_workers_agree(devices: Devices, done: int, path: Path) -> None:
    """Raise CheckpointError if the workers have read states after other updates than `done` from a run's folder."""
    if devices.workers > 1 and len(set(devices.values_of_workers(done))) > 1:
        raise CheckpointError(
            f"worker {devices.worker} read the state after update {done} from {path}, others that of another one: "
            "run.dir must be a folder that all workers share"
        )


def check_sizes(config: Config, manifest: Manifest) -> None:
    """Raise CheckpointError if a size of an own model is above the number of weights that its files can hold.

    Each size stands for as many weights or more. Such a model would be built before its weights are missed.
    """
    if not module_of(MODELS[config.model.kind].build).startswith("accumtrain.models"):
        return
    most = sum(file["bytes"] for file in manifest["files"].values()) // SMALLEST_WEIGHT
    for name, value in manifest["learned"].items():
        sizes = [size for size in (value if isinstance(value, list) else [value]) if type(size) is int]
        if name.startswith("model.") and max(sizes, default=0) > most:
            raise CheckpointError(
                f"the checkpoints in {folder_of(config)} are damaged: {name}={shorten(format_value(value))}, and they "
                f"hold {most:,} weights at most; train anew, under another run.name"
            )
