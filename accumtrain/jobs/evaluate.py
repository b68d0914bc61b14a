"""job=evaluate: loss and metrics of a trained run on its test split, or on all of other data with labels.

Without a test split it is the validation split.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.devices.resolve import resolve
from accumtrain.engine.build_window import model_for, moving_average
from accumtrain.engine.checkpoint import restore_model
from accumtrain.engine.evaluator import Evaluator
from accumtrain.engine.loss import build_means, build_split_metrics, top5
from accumtrain.errors import Preempted
from accumtrain.jobs.class_report import class_answers, report_classes
from accumtrain.jobs.place import epochs_of
from accumtrain.jobs.trained import check_evaluates, images_of, open_measured
from accumtrain.kinds.losses import tells_classes
from accumtrain.planning.auto_steps import with_trained_accum_steps
from accumtrain.planning.tensorflow_errors import in_user_words
from accumtrain.process.interrupt import Interrupt
from accumtrain.runs.folder import CHECKPOINTS, folder_of

NO_MEANS = ("examples", "seconds")  # of an evaluation's result


def run(config: Config) -> dict[str, Any] | None:
    """Evaluates the best state of a run, or the last state if there was no evaluation yet. Draws its pictures.

    Returns:
        status, step, epoch, checkpoint, test or val (loss and metrics), examples_per_second, seconds, own_data (whether
        it is what the run was trained on), skipped (examples of the split that can't be read), and what
        `report_classes` returns; None on a worker that is not the chief.

    Raises:
        CheckpointError: there is no trained run, its checkpoint can't be used, or a picture can't be written.
    """
    config = with_trained_accum_steps(config)
    devices = resolve(config.device)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    data, own = open_measured(config)
    split, names = "val" if data.test is None else "test", images_of(data).class_names
    if not own:
        say(f"{config.data.label} is not what the run was trained on: all its {data.train.size:,} images are measured")
        for note in data.notes:
            say(note)
    in_words = partial(in_user_words, config, data, devices.replicas, devices.workers)
    with in_words(), devices.strategy.scope():
        model = model_for(config, data, draws=False)
        ema = moving_average(config, model)
        accept = partial(check_evaluates, config, data.fingerprint)
        saved, manifest = restore_model(folder_of(config) / CHECKPOINTS, model, ema, accept)
        classes = data.num_classes if tells_classes(config.loss.kind) else 0
        answers = class_answers(classes, devices.replicas)
        evaluator = Evaluator(
            model,
            ema,
            build_means(config.loss) | ({"top5": top5} if classes > 5 else {}),
            data,
            split,
            micro_batch * devices.replicas,
            devices.strategy,
            build_split_metrics(config.loss),
            answers,
        )
    with devices.watch, in_words(), Interrupt() as interrupt:
        # a worker that stopped alone would leave the others waiting for its sums
        alone = devices.workers == 1
        result = evaluator(stop=lambda: interrupt.requested and alone, report=lambda done, batches: None)
        if result is None:
            raise Preempted("evaluation stopped; run the same command again")
        found = None if answers is None else answers.read()
    means = {name: value for name, value in result.items() if name not in NO_MEANS}
    row = (split, f"{result['examples']}", *(f"{value:.4f}" for value in means.values()))
    table(f"{saved.path}", ("split", "examples", *means), [row])
    say(f"{result['examples'] / result['seconds']:.0f} examples/s on {devices.description}")
    if data.skipped:
        warn(f"{len(data.skipped)} examples can't be read and are left out; evaluation.json names them")
    if not devices.chief:
        return None
    left_out = data.splits[split].skipped.values()
    by_class = {} if found is None else report_classes(*found, names, data, split, folder_of(config))
    return {
        "status": "completed",
        "step": saved.step,
        "epoch": float(epochs_of(manifest)),
        "checkpoint": saved.prefix,
        split: means,
        "examples_per_second": result["examples"] / result["seconds"],
        "seconds": result["seconds"],
        "own_data": own,
        "skipped": [{"split": split, "name": bad.name, "reason": bad.reason} for bad in left_out],
        **by_class,
    }
