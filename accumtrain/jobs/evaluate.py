"""job=evaluate: loss and accuracy of a trained run on its test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumtrain.config import Config, micro_batch_size
from accumtrain.console import say, table
from accumtrain.data.build import open_data
from accumtrain.devices import resolve
from accumtrain.engine.build import model_for, moving_average
from accumtrain.engine.checkpoint import restore_model
from accumtrain.engine.evaluate import Evaluator
from accumtrain.errors import Preempted
from accumtrain.jobs.auto import as_trained
from accumtrain.jobs.failures import explained
from accumtrain.jobs.interrupt import Interrupt
from accumtrain.runs import Run


def run(config: Config) -> dict[str, Any]:
    """Evaluates the best state of a run (the last, where no evaluation has chosen one). Writes nothing.

    Returns:
        status, step, checkpoint, test.

    Raises:
        CheckpointError: nothing is trained there, or its checkpoint can't be used.
    """
    config = as_trained(config)
    devices = resolve(config.device)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    data = open_data(config.data, config.run.seed)
    with devices.strategy.scope():
        model = model_for(config, data)
        ema = moving_average(config, model)
        path = restore_model(Run(config).checkpoints, model, ema)
        evaluator = Evaluator(model, ema, data, micro_batch * devices.replicas, devices.strategy)
    with explained(config, data, devices.replicas, devices.workers), Interrupt() as interrupt:
        result = evaluator(stop=lambda: interrupt.requested, report=lambda done, batches: None)
    if result is None:
        raise Preempted("evaluation stopped; run the same command again")
    table(f"{path}", ("split", "examples", "loss", "accuracy"), [_row(result)])
    say(f"{result['examples'] / result['seconds']:.0f} examples/s on {devices.description}")
    test = {"loss": result["loss"], "accuracy": result["accuracy"]}
    return {"status": "completed", "step": int(Path(path).name.removeprefix("step-")), "checkpoint": path, "test": test}


def _row(result: dict[str, float]) -> tuple[str, ...]:
    return "test", f"{result['examples']}", f"{result['loss']:.4f}", f"{result['accuracy']:.4f}"
