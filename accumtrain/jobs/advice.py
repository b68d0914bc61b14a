"""What to change when a run does not fit: one list, in words where a run failed, with numbers after probes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from accumtrain.config import CONF_DIR, MEMORIES, AdafactorConfig, Config, SgdConfig, from_mapping, to_mapping
from accumtrain.errors import ConfigError

LAST_RESORT = "a smaller model or smaller images"
# Keys that say nothing about the memory of a job: an evaluation keeps no activations, verify tries every policy.
WITHOUT_EFFECT = {"evaluate": ("model.memory", "optim"), "verify": ("model.memory",)}


@dataclass(frozen=True)
class Choice:
    """One change that takes less memory: the override, what it does in a few words, the configuration with it."""

    override: str
    effect: str
    config: Config


def choices(config: Config, replicas: int) -> list[Choice]:
    """The changes open to this configuration, the least consequential first; none that its rules forbid.

    Args:
        config: accum.steps=auto stands for a micro-batch of 1, which nothing can divide any more.
        replicas: an update's examples are split over so many.
    """
    found = [*_more_steps(config, replicas), *_leaner_policies(config), *_adafactor(config), *_bfloat16(config)]
    unused = WITHOUT_EFFECT.get(config.job, ())
    return [choice for choice in found if choice.override.partition("=")[0] not in unused]


def combined(config: Config, options: Sequence[Choice]) -> Config:
    """`config` with all of the choices; where two set the same key, the later one, which saves more."""
    start = to_mapping(config)
    changes: dict[str, Any] = {}
    for choice in options:
        changes |= {key: value for key, value in to_mapping(choice.config).items() if value != start[key]}
    return from_mapping(start | changes)


def policies(config: Config) -> list[Config]:
    """The configuration under each memory policy that its model has."""
    variants = [_changed(config, {"model": {"memory": memory}}) for memory in MEMORIES]
    return [variant for variant in variants if variant is not None]


def in_words(config: Config, replicas: int) -> str:
    """Why a run ended, and what would take less."""
    limit = config.device.memory_limit_mb
    where = "the device's memory" if limit is None else f"device.memory_limit_mb={limit}"
    options = [f"{choice.override} ({choice.effect})" for choice in choices(config, replicas)]
    options += [LAST_RESORT] if limit is None else ["a larger device.memory_limit_mb"]
    return f"{where} is not enough for this run. Less would take: {'; '.join(options)}" + _numbers(config)


def _numbers(config: Config) -> str:
    """Where to see figures, with the command that was given, where there is one."""
    if config.job != "train" or not HydraConfig.initialized():
        return ""
    given = HydraConfig.get()
    folders = [source.path for source in given.runtime.config_sources if source.provider == "command-line"]
    overrides = [override for override in given.overrides.task if not override.startswith("job=")]
    command = ["accumtrain", *(f"--config-dir={path}" for path in folders), "job=plan", *overrides]
    return f". What each micro-batch and memory policy takes, in numbers: {shlex.join(command)}"


def _more_steps(config: Config, replicas: int) -> list[Choice]:
    if config.accum.steps == "auto":
        return []
    examples = config.batch_size // replicas
    now = examples // config.accum.count
    smaller = next((size for size in range(now // 2, 0, -1) if examples % size == 0), None)
    if smaller is None:
        return []
    steps = examples // smaller
    effect = f"micro-batches of {smaller} instead of {now}, batch_size stays"
    return _choice(f"accum.steps={steps}", effect, config, {"accum": {"steps": steps}})


def _leaner_policies(config: Config) -> list[Choice]:
    effects = {"recompute": "activations are computed again", "reverse": "activations are computed back"}
    leaner = MEMORIES[MEMORIES.index(config.model.memory) + 1 :]
    return [
        choice
        for memory in leaner
        for choice in _choice(f"model.memory={memory}", effects[memory], config, {"model": {"memory": memory}})
    ]


def _adafactor(config: Config) -> list[Choice]:
    optim = config.optim
    if isinstance(optim, AdafactorConfig) or (isinstance(optim, SgdConfig) and optim.momentum == 0):
        return []  # no state to save
    values = OmegaConf.to_container(OmegaConf.load(CONF_DIR / "optim" / "adafactor.yaml"))
    return _choice("optim=adafactor", "almost no optimizer state, another learning rate", config, {"optim": values})


def _bfloat16(config: Config) -> list[Choice]:
    if config.precision not in ("float32", "float64"):
        return []
    return _choice("precision=bfloat16", "activations of half the size", config, {"precision": "bfloat16"})


def _choice(override: str, effect: str, config: Config, changes: Mapping[str, Any]) -> list[Choice]:
    variant = _changed(config, changes)
    return [] if variant is None else [Choice(override, effect, variant)]


def _changed(config: Config, changes: Mapping[str, Any]) -> Config | None:
    """`config` with other values; a kind of its own replaces its group. None where they break a rule."""
    mapping = to_mapping(config)
    for key, value in changes.items():
        whole = not isinstance(value, dict) or "kind" in value
        mapping[key] = value if whole else mapping[key] | value
    try:
        return from_mapping(mapping)
    except ConfigError:
        return None
