"""job=evaluate: loss and metrics of a trained run on its test split, or on all of other data with labels.

Without a test split it is the validation split. A table of classes, the confusion matrix and the worst mistakes come
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accumtrain.backprop.model import Model
from accumtrain.config.jobs import cell
from accumtrain.config.rules import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.data.pipeline import denormalize_images
from accumtrain.data.source import Dataset
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.losses import top5
from accumtrain.errors import Preempted
from accumtrain.process.signals import DeferredSignals
from accumtrain.report.confusion import ClassResult, Confusion, Mistake, draw_confusion, draw_mistakes
from accumtrain.runs.files import disk_errors
from accumtrain.runs.folder import result_file
from accumtrain.runs.names import folder_of
from accumtrain.train.build import build_means, build_split_metrics
from accumtrain.train.config import BestBy, tells_classes
from accumtrain.train.evaluator import ClassAnswers, Evaluator
from accumtrain.train.metrics import epochs_of
from accumtrain.train.remedies import explain_errors
from accumtrain.train.weights import Trained, images_of, open_measured, trained_model

MOST_CLASSES = 2000  # of a confusion matrix; it takes 32 MB then
SHOWN = 15  # classes that are printed
PAIRS = 100  # that are written down
FILE = "evaluation"  # without its ending
CONFUSION, MISTAKES = "confusion", "mistakes"  # pictures, likewise
NO_MEANS = ("examples", "seconds")  # of an evaluation's result


def class_answers(classes: int, replicas: int) -> ClassAnswers | None:
    """Return what collects the answers by class; None if there are none, or too many, which it says."""
    if classes > MOST_CLASSES:
        say(f"{classes:,} classes: the table of classes and the pictures are made for up to {MOST_CLASSES:,}")
    return ClassAnswers(classes, replicas) if 0 < classes <= MOST_CLASSES else None


@dataclass(frozen=True)
class Measured:
    """The evaluation of a split.

    Attributes:
        split: the name of the split.
        means: loss and metrics by name.
        examples: the number of examples that were measured.
        seconds: the time that it took.
        confusion: how often each class is taken for which; None if the classes are too many, or there are none.
        mistakes: the mistakes with the highest loss, highest first.
        files: the file of each of these mistakes; empty if the examples have none of their own.
    """

    split: str
    means: dict[str, float]
    examples: int
    seconds: float
    confusion: Confusion | None
    mistakes: list[Mistake]
    files: list[Path]

    @property
    def speed(self) -> float:
        """Examples per second."""
        return self.examples / self.seconds

    def describe_classes(self) -> dict[str, Any]:
        """Return classes (lowest accuracy first), confused (pairs) and mistakes; empty without a confusion matrix."""
        if self.confusion is None:
            return {}
        names, pairs = self.confusion.names, self.confusion.confused(PAIRS)
        mistakes = [_named(asdict(mistake), names, "label", "predicted") for mistake in self.mistakes]
        if self.files:
            mistakes = [mistake | {"file": str(file)} for mistake, file in zip(mistakes, self.files, strict=True)]
        return {
            "classes": [asdict(result) for result in self.confusion.classes],
            "confused": [_named(asdict(pair), names, "true", "predicted") for pair in pairs],
            "mistakes": mistakes,
        }


def measure_model(
    config: Config, model: Model, data: Dataset, devices: Devices, stop: Callable[[], bool] = lambda: False
) -> Measured:
    """Evaluate a model on the test split of `data`, or on the validation split if there is no other.

    Args:
        config: that of the model's run. Its batch size and accum.steps decide how many examples a pass takes.
        stop: called now and then; the evaluation is abandoned if it returns True.

    Raises:
        Preempted: it was abandoned.
    """
    split, metrics = "val" if data.test is None else "test", config.eval.metrics
    classes = data.num_classes if tells_classes(config.loss.kind) else 0
    with devices.strategy.scope():
        answers = class_answers(classes, devices.replicas)
        evaluator = Evaluator(
            model,
            None,
            build_means(config.loss, metrics) | ({"top5": top5} if classes > 5 and metrics is None else {}),
            data,
            split,
            micro_batch_size(config.batch_size, config.accum.count, devices.replicas) * devices.replicas,
            devices.runtime,
            build_split_metrics(config.loss),
            answers,
            together=config.accum.count,
        )
    with devices.watch:
        result = evaluator(stop=stop, report=lambda done, batches: None)
        if result is None:
            raise Preempted("evaluation stopped; run the same command again")
        counts, mistakes = (None, []) if answers is None else answers.read()
    means = {name: value for name, value in result.items() if name not in NO_MEANS}
    confusion = None if counts is None else Confusion(images_of(data).class_names, counts)
    files = data.splits[split].files
    of_mistakes = [files[mistake.position] for mistake in mistakes] if files else []
    return Measured(split, means, int(result["examples"]), result["seconds"], confusion, mistakes, of_mistakes)


def describe_evaluation(
    config: Config, measured: Measured, data: Dataset, trained: Trained, *, own: bool
) -> dict[str, Any]:
    """Return what `evaluate_run` does, but for the pictures."""
    left_out = data.splits[measured.split].skipped.values()
    return {
        "status": "completed",
        "step": trained.saved.step,
        "epoch": float(epochs_of(trained.manifest)),
        "checkpoint": trained.saved.prefix,
        measured.split: measured.means,
        "best_by": asdict(BestBy.of(config.train.monitor, config.eval.metrics, measured.means)),
        "examples_per_second": measured.speed,
        "seconds": measured.seconds,
        "own_data": own,
        "skipped": [{"split": measured.split, "name": bad.name, "reason": bad.reason} for bad in left_out],
        **measured.describe_classes(),
    }


def draw_classes(measured: Measured, data: Dataset, run: str, file: Path) -> list[str]:
    """Draw the confusion matrix and the worst mistakes beside `file`, with the end of its name. Return the pictures.

    Args:
        run: the name of the run.
        file: that of the evaluation, such as evaluation.json or evaluation_last-photos.json.

    Raises:
        CheckpointError: a picture can't be written.
    """
    assert measured.confusion is not None
    end = file.stem.removeprefix(FILE)
    pictures = [file.with_name(f"{CONFUSION}{end}.png")]
    title = f"{run}, {sum(measured.confusion.examples):,} {measured.split} examples"
    draw_confusion(measured.confusion, title, pictures[0])
    sheet = file.with_name(f"{MISTAKES}{end}.png")
    if measured.mistakes:
        images = denormalize_images(data, measured.split, [mistake.position for mistake in measured.mistakes])
        draw_mistakes(images, measured.mistakes, measured.files, measured.confusion.names, sheet)
        pictures.append(sheet)
    else:
        with disk_errors(sheet):
            sheet.unlink(missing_ok=True)  # that of an earlier evaluation
        say("no mistakes")
    say(f"drawn: {' and '.join(map(str, pictures))}")
    return list(map(str, pictures))


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
        it is what the run was trained on), skipped (examples of the split that can't be read), and if the classes are
        told apart classes (lowest accuracy first), confused (pairs), mistakes (highest loss first), pictures (their
        files). None on a worker that is not the chief.

    Raises:
        CheckpointError: there is no trained run, its checkpoint can't be used, or a picture can't be written.
    """
    devices = resolve_devices(config.device)
    data, own = open_measured(config)
    if not own:
        say(f"{config.data.label} is not what the run was trained on: all its {data.train.size:,} images are measured")
        for note in data.notes:
            say(note)
    with explain_errors(config, data, devices.replicas, devices.workers):
        with devices.strategy.scope():
            trained = trained_model(config, images_of(data), data.fingerprint, config.state)
        alone = devices.workers == 1  # a worker that stopped alone would leave the others waiting for its sums
        with DeferredSignals() as interrupt:
            measured = measure_model(config, trained.model, data, devices, lambda: interrupt.requested and alone)
    row = (measured.split, f"{measured.examples}", *(f"{value:.4f}" for value in measured.means.values()))
    table(f"{trained.saved.path}", ("split", "examples", *measured.means), [row])
    say(f"{measured.speed:.0f} examples/s on {devices.description}")
    if data.skipped:
        warn(f"{len(data.skipped)} examples can't be read and are left out; {result_file(config).name} names them")
    if not devices.chief:
        return None
    result = describe_evaluation(config, measured, data, trained, own=own)
    if measured.confusion is not None:
        _show(measured.confusion.classes)
        result["pictures"] = draw_classes(measured, data, folder_of(config).name, result_file(config))
    what = f"the {measured.split} images of {config.data.label}" if own else f"all images of {config.data.label}"
    say(f"measured: the {config.state} state, update {trained.saved.step:,}, on {what}; in {result_file(config)}")
    return result
