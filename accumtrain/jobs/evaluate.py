"""job=evaluate: loss and accuracy of a trained run on its test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.data.open_data import open_data
from accumtrain.devices.resolve import resolve
from accumtrain.engine.build_window import model_for, moving_average
from accumtrain.engine.checkpoint import restore_model
from accumtrain.engine.evaluator import Evaluator
from accumtrain.engine.loss import build_loss
from accumtrain.errors import Preempted
from accumtrain.planning.auto_steps import with_trained_accum_steps
from accumtrain.planning.tensorflow_errors import in_user_words
from accumtrain.process.interrupt import Interrupt
from accumtrain.runs.folder import CHECKPOINTS, folder_of


def run(config: Config) -> dict[str, Any] | None:
    """Evaluates the best state of a run, or the last state if there was no evaluation yet.

    Returns:
        status, step, checkpoint, test (loss, accuracy), examples_per_second, seconds; None on a worker that is not the
        chief.

    Raises:
        CheckpointError: there is no trained run, or its checkpoint can't be used.
    """
    config = with_trained_accum_steps(config)
    devices = resolve(config.device)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    data = open_data(config.data, config.run.seed)
    with devices.strategy.scope():
        model = model_for(config, data)
        ema = moving_average(config, model)
        path = restore_model(folder_of(config) / CHECKPOINTS, model, ema)
        evaluator = Evaluator(
            model, ema, build_loss(config.loss), data, micro_batch * devices.replicas, devices.strategy
        )
    with in_user_words(config, data, devices.replicas, devices.workers), Interrupt() as interrupt:
        # a worker that stopped alone would leave the others waiting for its sums
        alone = devices.workers == 1
        result = evaluator(stop=lambda: interrupt.requested and alone, report=lambda done, batches: None)
    if result is None:
        raise Preempted("evaluation stopped; run the same command again")
    table(f"{path}", ("split", "examples", "loss", "accuracy"), [_row(result)])
    say(f"{result['examples'] / result['seconds']:.0f} examples/s on {devices.description}")
    if not devices.chief:
        return None
    return {
        "status": "completed",
        "step": int(Path(path).name.removeprefix("step-")),
        "checkpoint": path,
        "test": {"loss": result["loss"], "accuracy": result["accuracy"]},
        "examples_per_second": result["examples"] / result["seconds"],
        "seconds": result["seconds"],
    }


def _row(result: dict[str, float]) -> tuple[str, ...]:
    return "test", f"{result['examples']}", f"{result['loss']:.4f}", f"{result['accuracy']:.4f}"
