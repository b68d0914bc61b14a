"""job=evaluate: loss and metrics of a trained run on its test split, or on all of other data with labels.

Without a test split it is the validation split. A table of classes, the confusion matrix and the worst mistakes come
with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from accumtrain.config.jobs import cell
from accumtrain.config.rules import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.data.pipeline import denormalize_images
from accumtrain.data.source import Dataset
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.losses import top5
from accumtrain.errors import Preempted
from accumtrain.process.signals import DeferredSignals
from accumtrain.report.confusion import ClassResult, Confusion, Mistake, draw_confusion, draw_mistakes
from accumtrain.runs.files import disk_errors
from accumtrain.runs.names import CHECKPOINTS, folder_of
from accumtrain.train.build import build_means, build_split_metrics, model_for, moving_average
from accumtrain.train.checkpoint import restore_model
from accumtrain.train.config import BestBy, tells_classes
from accumtrain.train.evaluator import ClassAnswers, Evaluator
from accumtrain.train.metrics import epochs_of
from accumtrain.train.remedies import explain_errors
from accumtrain.train.weights import check_evaluates, images_of, open_measured

MOST_CLASSES = 2000  # of a confusion matrix; it takes 32 MB then
SHOWN = 15  # classes that are printed
PAIRS = 100  # that are written down
CONFUSION, MISTAKES = "confusion.png", "mistakes.png"
NO_MEANS = ("examples", "seconds")  # of an evaluation's result


def class_answers(classes: int, replicas: int) -> ClassAnswers | None:
    """Return what collects the answers by class; None if there are none, or too many, which it says."""
    if classes > MOST_CLASSES:
        say(f"{classes:,} classes: up to {MOST_CLASSES:,} there are a table of classes and pictures, too")
    return ClassAnswers(classes, replicas) if 0 < classes <= MOST_CLASSES else None


def report_classes(
    counts: list[list[int]],
    mistakes: Sequence[Mistake],
    class_names: list[str],
    data: Dataset,
    split: str,
    folder: Path,
) -> dict[str, Any]:
    """Print the table, and draw the pictures into the folder of the run.

    Args:
        counts: the confusion matrix, as in Confusion.
        split: the name of the split that the mistakes are in.

    Returns:
        classes (lowest accuracy first), confused (pairs), mistakes (highest loss first), pictures (their files).

    Raises:
        CheckpointError: a picture can't be written.
    """
    confusion = Confusion(class_names, counts)
    classes = confusion.classes
    _show(classes)
    pictures = [folder / CONFUSION]
    draw_confusion(confusion, f"{folder.name}, {sum(confusion.examples):,} {split} examples", pictures[0])
    sheet = folder / MISTAKES
    if mistakes:
        images = denormalize_images(data, split, [mistake.position for mistake in mistakes])
        draw_mistakes(images, mistakes, confusion.names, sheet)
        pictures.append(sheet)
    else:
        with disk_errors(sheet):
            sheet.unlink(missing_ok=True)  # that of an earlier evaluation
        say("no mistakes")
    say(f"drawn: {' and '.join(map(str, pictures))}")
    return {
        "classes": [asdict(result) for result in classes],
        "confused": [_named(asdict(pair), confusion.names, "true", "predicted") for pair in confusion.confused(PAIRS)],
        "mistakes": [_named(asdict(mistake), confusion.names, "label", "predicted") for mistake in mistakes],
        "pictures": list(map(str, pictures)),
    }


def _named(record: dict[str, Any], names: Sequence[str], *keys: str) -> dict[str, Any]:
    return record | {key: names[record[key]] for key in keys}


def _show(classes: Sequence[ClassResult]) -> None:
    rows = [
        (result.name, f"{result.examples}", cell(result.accuracy, ".4f"), cell(result.precision, ".4f"))
        for result in classes[:SHOWN]
    ]
    table("classes, lowest accuracy first", ("class", "examples", "accuracy", "precision"), rows)
    if len(classes) > SHOWN:
        say(f"... and {len(classes) - SHOWN:,} more")


def evaluate_run(config: Config) -> dict[str, Any] | None:
    """Evaluate the best or the last state of a run. Draw its pictures.

    Returns:
        status, step, epoch, checkpoint, test or val (loss and metrics), examples_per_second, seconds, own_data (whether
        it is what the run was trained on), skipped (examples of the split that can't be read), and what
        `report_classes` returns. None on a worker that is not the chief.

    Raises:
        CheckpointError: there is no trained run, its checkpoint can't be used, or a picture can't be written.
    """
    devices = resolve_devices(config.device)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    data, own = open_measured(config)
    split, names = "val" if data.test is None else "test", images_of(data).class_names
    if not own:
        say(f"{config.data.label} is not what the run was trained on: all its {data.train.size:,} images are measured")
        for note in data.notes:
            say(note)
    in_words = partial(explain_errors, config, data, devices.replicas, devices.workers)
    with in_words(), devices.strategy.scope():
        model = model_for(config, data, draws=False)
        ema = moving_average(config, model)
        accept = partial(check_evaluates, config, data.fingerprint)
        saved, manifest = restore_model(folder_of(config) / CHECKPOINTS, model, ema, accept, state=config.state)
        classes = data.num_classes if tells_classes(config.loss.kind) else 0
        by_loss = config.eval.metrics is None
        answers = class_answers(classes, devices.replicas)
        evaluator = Evaluator(
            model,
            ema,
            build_means(config.loss, config.eval.metrics) | ({"top5": top5} if classes > 5 and by_loss else {}),
            data,
            split,
            micro_batch * devices.replicas,
            devices.strategy,
            build_split_metrics(config.loss),
            answers,
        )
    with devices.watch, in_words(), DeferredSignals() as interrupt:
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
        "best_by": asdict(BestBy.of(config.train.monitor, config.eval.metrics, means)),
        "examples_per_second": result["examples"] / result["seconds"],
        "seconds": result["seconds"],
        "own_data": own,
        "skipped": [{"split": split, "name": bad.name, "reason": bad.reason} for bad in left_out],
        **by_class,
    }
