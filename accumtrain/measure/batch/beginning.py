"""The beginning of all branches: a checkpoint of the run, or of updates that the job itself makes."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import format_things, say
from accumtrain.errors import CheckpointError, ConfigError, DivergedError, OutOfMemoryError
from accumtrain.measure.batch.children import (
    COMPLETED,
    NO_MEMORY,
    OUTPUT,
    digest_of,
    find_end,
    open_request,
    raise_error,
    run_in_child,
    train_in_child,
)
from accumtrain.optim.schedules import ConstantConfig
from accumtrain.process.signals import JobSignals
from accumtrain.runs.checkpoint_store import UNFINISHED, Saved, find_whole, newest_first
from accumtrain.runs.files import disk_errors
from accumtrain.runs.names import CHECKPOINTS, folder_of, has_checkpoints, make_folder
from accumtrain.runs.run import Run
from accumtrain.train.config import NONE as NO_TRACKER

TASK = "accumtrain.measure.batch.beginning:examine_beginning"
LEAST_FACTOR = 0.01  # of a schedule, with which a branch still learns enough to be compared


@dataclass(frozen=True)
class Beginning:
    """The checkpoint that all branches begin with, and what the run does there.

    Attributes:
        run: the folder of the run, or of the updates that the job itself has made.
        saved: the checkpoint, in a folder of the job.
        checksum: of its manifest.
        rate: of the next update of the run; None if the optimizer computes its own.
        loss: on the held-out examples.
        split: the held-out examples.
        epoch_examples: examples of an epoch.
        batch: of the next update of the run, which may be one of its batch_ramp.
        replicas: that share a batch.
        told: what an example counts in half-lives: 1, or its tokens to predict.
    """

    run: Path
    saved: Saved
    checksum: str
    rate: float | None
    loss: float
    split: str
    epoch_examples: int
    batch: int
    replicas: int
    told: float = 1.0

    @property
    def step(self) -> int:
        return self.saved.step


def find_beginning(config: Config, folder: Path) -> Beginning:
    """Return the beginning in the job's folder. The run's own folder is only read.

    Args:
        config: with accum.steps as a number.
        folder: of the job.

    Raises:
        AccumtrainError: the run has no whole checkpoint, or is not continued by this configuration.
    """
    run, updates = folder_of(config), config.batch_test.warmup
    if has_checkpoints(run):
        if updates is not None:
            raise ConfigError(
                f"batch_test.warmup={updates}: {run} holds a run, from which the branches go on; leave "
                "batch_test.warmup out, or choose another run.name"
            )
        Run(config).check_continues()
        saved, manifest = find_whole(newest_first(run / CHECKPOINTS))
        name = f"update{saved.step}-{manifest['crc32c']}"
        config = replace(config, job="train", run=replace(config.run, dir=str(folder), name=name))
        copy_checkpoint(saved, folder_of(config))
    elif updates is None:
        raise CheckpointError(
            f"no checkpoint in {run / CHECKPOINTS}: train first, with the same run.name; or give batch_test.warmup=100 "
            "to make as many updates before the branches"
        )
    else:
        config = _train_beginning(config, folder, updates)
        run = folder_of(config)
    return _examine(config, run)


def copy_checkpoint(saved: Saved, folder: Path) -> None:
    """Copy a checkpoint into the folder of a training that has none. Its files are links, as none is ever changed."""
    directory = folder / CHECKPOINTS
    if has_checkpoints(folder):
        return
    make_folder(directory)
    unfinished = directory / f"{UNFINISHED}{saved.step}"
    with disk_errors(directory):
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(saved.path, unfinished, copy_function=_link_or_copy)
        unfinished.rename(directory / saved.path.name)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _train_beginning(config: Config, folder: Path, updates: int) -> Config:
    """Make batch_test.warmup updates with a rising rate, and return their configuration."""
    config = replace(
        config,
        job="train",
        batch_ramp={},
        schedule=ConstantConfig(warmup=updates),
        train=replace(config.train, steps=updates, patience=None),
        log=replace(config.log, tracker=NO_TRACKER),
        run=replace(config.run, resume=True),
    )
    name = f"warmup{updates}-{digest_of(config)}"
    config = replace(config, run=replace(config.run, dir=str(folder), name=name))
    if find_end(config) is None:
        say(
            f"there is no run yet: {format_things(updates, 'update')} are made first, at batch_size={config.batch_size}"
        )
    if (ended := train_in_child(config)) != COMPLETED:
        raise (OutOfMemoryError if ended == NO_MEMORY else DivergedError)(
            f"the {format_things(updates, 'update')} before the branches ended otherwise: {ended}; see "
            f"{folder_of(config) / OUTPUT}; lower optim.lr, or raise accum.steps if memory ran out"
        )
    return config


def _examine(config: Config, run: Path) -> Beginning:
    """Return the beginning that a training of the configuration would go on from. `run` is what it is that of."""
    result = run_in_child(TASK, config, lambda: "evaluating the checkpoint that the branches begin with")
    raise_error(result, config)
    saved, manifest = find_whole(newest_first(folder_of(config) / CHECKPOINTS))
    found = dict(result.answer)
    factor = found.pop("factor")
    if config.optim.lr is None and factor != 1:
        raise ConfigError(
            f"optim.lr=null: the branches have a constant schedule, and schedule={config.schedule.kind} has the factor "
            f"{factor:.3g} on the optimizer's own rate here; add schedule=constant run.resume=force"
        )
    if factor < LEAST_FACTOR:
        raise ConfigError(
            f"schedule={config.schedule.kind}: after update {saved.step} the rate is {factor:.3g} times "
            f"optim.lr, by which no branch would learn much; {_remedy_of_rate(config, saved.step)}"
        )
    rate = None if config.optim.lr is None else config.optim.lr * factor
    return Beginning(run, saved, manifest["crc32c"], rate, **found)


def _remedy_of_rate(config: Config, done: int) -> str:
    """Return what to do about a rate that is nearly 0 after so many updates."""
    given = "give the rate: schedule=constant optim.lr=<rate> run.resume=force"
    if done < config.schedule.first_whole:
        return f"train the run beyond its warm-up, or {given}"
    key, length = ("steps", config.train.steps) if config.train.steps else ("epochs", config.train.epochs)
    return f"add train.{key}={2 * (length or 0):g}, as if it were half way, or {given}"


# ---- in the child ----


def examine_beginning(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Restore the newest checkpoint of the requested training, and evaluate it. Return what the branches need."""
    config = open_request(request)
    import tensorflow as tf

    from accumtrain.train.train import open_trainer

    with JobSignals(), open_trainer(config) as trainer:
        found = trainer.evaluator(stop=lambda: False, report=lambda done, batches: None)
        assert found is not None, "it was not stopped"
        last = min(trainer.done, trainer.total - 1)  # behind the end no schedule has a factor
        factor = config.schedule.build(trainer.total, tf.float64)(tf.constant(last, tf.int64))
        return {
            "loss": float(found["loss"]),
            "split": trainer.data.evaluated_split,
            "factor": float(factor),
            "epoch_examples": trainer.data.train.size,
            "batch": trainer.epochs.batch_after(trainer.done),
            "replicas": trainer.devices.replicas,
            "told": trainer.objective.told_per_example,
        }
