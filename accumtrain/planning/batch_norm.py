"""Micro-batches that are too small for the batch norm of a model, and what to do about them."""

from __future__ import annotations

from accumtrain.backprop.model import Model
from accumtrain.config.arithmetic import divisors, micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import warn
from accumtrain.errors import ConfigError
from accumtrain.kinds.model_keys import LEAST_WITH_BATCH_NORM
from accumtrain.kinds.resnets import ResNetConfig
from accumtrain.planning.advice import allowed_remedy

ENOUGH = 4  # examples


def check_micro_batch(config: Config, model: Model, replicas: int) -> None:
    """Warns of micro-batches that are small for the model's batch norm. A frozen one takes no statistics of them.

    Args:
        config: with accum.steps as a number.
        replicas: number of replicas that share the examples of an update.

    Raises:
        ConfigError: they are of one example.
    """
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


def _remedies(config: Config, replicas: int) -> list[str]:
    examples = config.batch_size // replicas
    size = next((size for size in divisors(examples) if size >= ENOUGH), None)
    larger = f"batch_size={ENOUGH * replicas} accum.steps=1" if size is None else f"accum.steps={examples // size}"
    leanest = config.model.policies[-1]
    room = "" if config.model.memory == leanest else f", for which model.memory={leanest} makes room"
    has_key = isinstance(config.model, ResNetConfig)
    others = allowed_remedy("model.norm=group", "", config, {"model": {"norm": "group"}}) if has_key else []
    return [f"give {larger}{room}", *(f"use {remedy.override}" for remedy in others)]
