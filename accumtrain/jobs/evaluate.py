"""job=evaluate: loss and metrics of a trained run on its test split, or on its validation split if it has no other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.data.open_data import open_data
from accumtrain.devices.resolve import resolve
from accumtrain.engine.build_window import model_for, moving_average
from accumtrain.engine.checkpoint import restore_model
from accumtrain.engine.evaluator import Evaluator
from accumtrain.engine.loss import build_means, build_split_metrics
from accumtrain.errors import CheckpointError, Preempted
from accumtrain.planning.auto_steps import with_trained_accum_steps
from accumtrain.planning.tensorflow_errors import in_user_words
from accumtrain.process.interrupt import Interrupt
from accumtrain.runs.folder import CHECKPOINTS, folder_of
from accumtrain.runs.identity import differences, learned_values

MEASURED = ("model.", "loss.", "ema.", "precision", "data.kind", "data.mean", "data.std", "data.image_size")
CLASSES = "data.classes"
NO_MEANS = ("examples", "seconds")  # of an evaluation's result


def run(config: Config) -> dict[str, Any] | None:
    """Evaluates the best state of a run, or the last state if there was no evaluation yet.

    Returns:
        status, step, checkpoint, test or val (loss and metrics), examples_per_second, seconds, skipped (examples that
        can't be read); None on a worker that is not the chief.

    Raises:
        CheckpointError: there is no trained run, or its checkpoint can't be used.
    """
    config = with_trained_accum_steps(config)
    devices = resolve(config.device)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    data = open_data(config.data, config.run.seed)
    split = "val" if data.test is None else "test"
    with devices.strategy.scope():
        model = model_for(config, data)
        ema = moving_average(config, model)
        accept = partial(check_evaluates, config, data.fingerprint)
        saved = restore_model(folder_of(config) / CHECKPOINTS, model, ema, accept)
        evaluator = Evaluator(
            model,
            ema,
            build_means(config.loss),
            data,
            split,
            micro_batch * devices.replicas,
            devices.strategy,
            build_split_metrics(config.loss),
        )
    in_words = in_user_words(config, data, devices.replicas, devices.workers)
    with devices.watch, in_words, Interrupt() as interrupt:
        # a worker that stopped alone would leave the others waiting for its sums
        alone = devices.workers == 1
        result = evaluator(stop=lambda: interrupt.requested and alone, report=lambda done, batches: None)
    if result is None:
        raise Preempted("evaluation stopped; run the same command again")
    means = {name: value for name, value in result.items() if name not in NO_MEANS}
    row = (split, f"{result['examples']}", *(f"{value:.4f}" for value in means.values()))
    table(f"{saved.path}", ("split", "examples", *means), [row])
    say(f"{result['examples'] / result['seconds']:.0f} examples/s on {devices.description}")
    if data.skipped:
        warn(f"{len(data.skipped)} examples can't be read and are left out; evaluation.json names them")
    if not devices.chief:
        return None
    return {
        "status": "completed",
        "step": saved.step,
        "checkpoint": saved.prefix,
        split: means,
        "examples_per_second": result["examples"] / result["seconds"],
        "seconds": result["seconds"],
        "skipped": data.skipped,
    }


def check_evaluates(config: Config, fingerprint: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Compares what the checkpoint's manifest says of model, images and classes with this configuration.

    Args:
        fingerprint: that of the data, as far as it is known.

    Raises:
        CheckpointError: this configuration would measure another model, or feed it other images.
    """
    now = learned_values(config) | dict(fingerprint)
    trained = {**manifest.get("learned", {}), **manifest.get("data", {})}
    measured = {key: value for key, value in trained.items() if key == CLASSES or key.startswith(MEASURED)}
    if changed := differences(measured, now):
        raise CheckpointError(
            f"the run in {folder_of(config)} was trained with other values: {changed}; evaluate it with those it was "
            "trained with"
        )
