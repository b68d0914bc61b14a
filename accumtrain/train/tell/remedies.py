"""Remedies for a run that does not fit into memory, and TensorFlow's errors in the user's words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig

from accumtrain.config.jobs import JOBS
from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError, OutOfMemoryError, WorkerLostError
from accumtrain.models.config import RECOMPUTE, REVERSE
from accumtrain.optim.config import OPTIMIZERS
from accumtrain.process.machine import fewer_addresses_than_memory
from accumtrain.runs.names import learned_values

if TYPE_CHECKING:
    from accumtrain.data.source import Dataset

BUDGET = re.compile(r"\+*model\.memory=\d+")  # the rules refuse accum.steps=auto beside it
LAST_RESORT = "a smaller model or smaller images"
EFFECTS = {RECOMPUTE: "activations are computed again", REVERSE: "activations are computed back"}


@dataclass(frozen=True)
class Remedy:
    """A change that saves memory: its override, its effect in a few words, and the changed configuration."""

    override: str
    effect: str
    config: Config


def remedies(config: Config, replicas: int) -> list[Remedy]:
    """Return the changes that save memory and that rules and job allow, the least consequential first.

    They are the same after a run that failed and after probes.

    Args:
        config: with accum.steps=auto the micro-batch is the smallest, so more steps are no remedy.
        replicas: number of replicas that share the examples of an update.
    """
    found = [*_more_steps(config, replicas), *_leaner_policies(config), *_leaner_optimizers(config), *_bfloat16(config)]
    job, learned = JOBS[config.job], learned_values(config)
    if job.scope == "trained":  # it computes as its run was trained
        found = [remedy for remedy in found if learned_values(remedy.config) == learned]
    return [remedy for remedy in found if remedy.override.partition("=")[0] not in job.without_effect]


def apply_remedies(config: Config, options: Sequence[Remedy]) -> Config:
    """Return `config` with all of the remedies. If two set the same key, the later one is used, which saves more."""
    start = to_mapping(config)
    changes: dict[str, Any] = {}
    for remedy in options:
        changes |= {key: value for key, value in to_mapping(remedy.config).items() if value != start[key]}
    return from_mapping(start | changes)


def with_each_policy(config: Config) -> list[Config]:
    """Return the configuration with each memory policy that its model supports."""
    return [replace(config, model=config.model.with_policy(memory)) for memory in config.model.policies]


def describe_out_of_memory(config: Config, replicas: int) -> str:
    """Return the message for a run that ran out of memory: the limit, and what would take less."""
    limit = config.device.memory_limit_mb
    if limit is not None:
        where, last = f"device.memory_limit_mb={limit} (MB of tensors)", "a larger device.memory_limit_mb"
    elif fewer_addresses_than_memory():
        where, last = "what `ulimit -v` leaves", "a higher `ulimit -v`, such as `ulimit -v unlimited`"
    else:
        where, last = "the device's memory", LAST_RESORT
    probes = " accum.steps=auto finds the largest micro-batch that fits." if _probes_can_help(config, replicas) else ""
    options = [*(f"{remedy.override} ({remedy.effect})" for remedy in remedies(config, replicas)), last]
    return (
        f"{where} is not enough for this run.{probes} Each of these takes less, though one may not be enough: "
        + "; ".join(options)
        + _numbers(config)
    )


def _numbers(config: Config) -> str:
    """Return the job=plan command that measures the alternatives; empty if there is no command line."""
    if not JOBS[config.job].probed or not HydraConfig.initialized():
        return ""
    given = HydraConfig.get()
    folders = [source.path for source in given.runtime.config_sources if source.provider == "command-line"]
    overrides = [override for override in given.overrides.task if not override.startswith("job=")]
    command = ["accumtrain", *(f"--config-dir={path}" for path in folders), "job=plan", *overrides]
    return f". What each micro-batch and memory policy takes, in numbers: {shlex.join(command)}"


def _more_steps(config: Config, replicas: int) -> Iterator[Remedy]:
    if config.accum.is_auto:
        return
    examples = config.batch_size // replicas
    now = examples // config.accum.count
    least = config.model.least_micro_batch
    smaller = next((size for size in range(now // 2, least - 1, -1) if examples % size == 0), None)
    if smaller is not None:
        steps = examples // smaller
        effect = f"micro-batches of {smaller} instead of {now}, batch_size stays"
        yield from allowed_remedy(f"accum.steps={steps}", effect, config, {"accum": {"steps": steps}})


def _probes_can_help(config: Config, replicas: int) -> bool:
    """Return whether accum.steps=auto is allowed, and may find smaller micro-batches that fit."""
    has_budget = HydraConfig.initialized() and any(map(BUDGET.fullmatch, HydraConfig.get().overrides.task))
    if not JOBS[config.job].probed or has_budget or not any(_more_steps(config, replicas)):
        return False
    return bool(allowed_remedy("accum.steps=auto", "", config, {"accum": {"steps": "auto"}}))


def _leaner_policies(config: Config) -> Iterator[Remedy]:
    policies = config.model.policies
    for memory in policies[policies.index(config.model.policy) + 1 :]:
        yield from allowed_remedy(f"model.memory={memory}", EFFECTS[memory], config, {"model": {"memory": memory}})


def _leaner_optimizers(config: Config) -> Iterator[Remedy]:
    if config.optim.memory_effect or not config.optim.keeps_state:
        return  # no state to save
    for entry in OPTIMIZERS:
        if effect := entry.config.memory_effect:
            yield from allowed_remedy(f"optim={entry.name}", effect, config, {"optim": asdict(entry.config())})


def _bfloat16(config: Config) -> Iterator[Remedy]:
    if config.precision in ("float32", "float64"):
        effect = "activations of half the size"
        yield from allowed_remedy("precision=bfloat16", effect, config, {"precision": "bfloat16"})


def allowed_remedy(override: str, effect: str, config: Config, changes: Mapping[str, Any]) -> list[Remedy]:
    """Return the remedy as a list, which is empty if it breaks a rule.

    Args:
        changes: new values by key, or by group and key.
    """
    try:
        return [Remedy(override, effect, _with(config, changes))]
    except ConfigError:
        return []


def _with(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return `config` with changed values. A group with a `kind` is replaced as a whole. Raises ConfigError."""
    mapping = to_mapping(config)
    for key, value in changes.items():
        whole = not isinstance(value, dict) or "kind" in value
        mapping[key] = value if whole else mapping[key] | value
    return from_mapping(mapping)


@contextmanager
def explain_errors(config: Config, data: Dataset | None, replicas: int = 1, workers: int = 1) -> Iterator[None]:
    """Make errors with a remedy of TensorFlow's errors about memory, data or a lost worker, within this context.

    Args:
        data: that is read in this context; None if none is.
    """
    import tensorflow as tf

    from accumtrain.data.open_data import explain_input_error

    lost_worker = (  # raised by collective operations when another worker has ended
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
    )
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(describe_out_of_memory(config, replicas)) from error
    except lost_worker as error:
        if workers == 1:
            raise
        raise WorkerLostError(
            f"another worker went away or did not answer in time ({type(error).__name__}); the last "
            "checkpoint is intact: start all workers again with the same command to continue from it"
        ) from error
    except tf.errors.OpError as error:
        reason = None if data is None else explain_input_error(error, data)
        if reason is None:
            raise
        raise reason from error
