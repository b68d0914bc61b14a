"""job=evaluate: loss and metrics of a trained run on its test split, or on all of other data with labels.

Without a test split it is the validation split. The task has further findings, such as the confusions of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from accumtrain.config.arithmetic import Epochs, micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import format_measure, format_speed, format_things, say, table, warn
from accumtrain.data.images.damage import leave_out_damaged
from accumtrain.data.source import Dataset
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve_devices
from accumtrain.errors import Preempted
from accumtrain.process.signals import DeferredSignals
from accumtrain.runs.folder import result_file
from accumtrain.runs.names import folder_of
from accumtrain.tasks.objective import Objective, Report
from accumtrain.train.config import BestBy
from accumtrain.train.evaluator import build_evaluator
from accumtrain.train.metrics import epochs_of
from accumtrain.train.tell.remedies import explain_errors
from accumtrain.train.trained.load import Trained, open_measured, trained_model

FILE = "evaluation"  # without its ending
NO_MEANS = ("examples", "seconds")  # of an evaluation's result


@dataclass(frozen=True)
class Measured:
    """The evaluation of a split.

    Attributes:
        split: the name of the split.
        means: loss and metrics by name.
        examples: the number of examples that were measured.
        seconds: the time that it took.
        report: what is found in the answers of the model; None if they are not collected.
    """

    split: str
    means: dict[str, float]
    examples: int
    seconds: float
    report: Report | None

    @property
    def speed(self) -> float:
        """Examples per second."""
        return self.examples / self.seconds


def measure_model(
    config: Config,
    trained: Trained,
    objective: Objective,
    devices: Devices,
    stop: Callable[[], bool] = lambda: False,
) -> Measured:
    """Evaluate a model on the test split of its data, or on the validation split if there is no other.

    Args:
        config: that of the model's run. Its batch size and accum.steps decide how many examples a pass takes.
        stop: called now and then; the evaluation is abandoned if it returns True.

    Raises:
        Preempted: it was abandoned.
    """
    split = "val" if objective.stored.test is None else "test"
    leave_out_damaged([objective.stored.splits[split].whole])
    batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas) * devices.replicas
    with devices.strategy.scope():
        evaluator = build_evaluator(config, objective, split, batch, trained.model, devices.runtime, reports=True)
    with devices.watch:
        result = evaluator(stop=stop, report=lambda done, batches: None)
        if result is None:
            raise Preempted("evaluation stopped; run the same command again")
        report = objective.report(evaluator.collectors, split, trained.answer.facts)
    means = {name: value for name, value in result.items() if name not in NO_MEANS}
    return Measured(split, means, int(result["examples"]), result["seconds"], report)


def describe_evaluation(
    config: Config, measured: Measured, data: Dataset, trained: Trained, *, own: bool
) -> dict[str, Any]:
    """Return the result of `evaluate_run`, but for the pictures."""
    split = data.splits[measured.split]
    left_out = [*split.left_out, *split.skipped.values()]
    chosen, monitor = config.eval.metrics, config.train.monitor
    best_by = BestBy.of(config.task, config.loss, chosen, monitor, measured.means)
    epochs = Epochs(config, trained.manifest["data"]["data.train.examples"])
    return {
        "status": "completed",
        "step": trained.saved.step,
        "epoch": epochs.counted(epochs_of(trained.manifest)),
        "checkpoint": trained.saved.prefix,
        measured.split: measured.means,
        "best_by": asdict(best_by),
        "examples_per_second": measured.speed,
        "seconds": measured.seconds,
        "own_data": own,
        "skipped": [{"split": measured.split, "name": bad.name, "reason": bad.reason} for bad in left_out],
        **({} if measured.report is None else measured.report.describe()),
    }


def evaluate_run(config: Config) -> dict[str, Any] | None:
    """Evaluate the best or the last state of a run. Draw its pictures.

    Returns:
        None on a worker that is not the chief, else:
        status, step, epoch, checkpoint, examples_per_second, seconds.
        test or val: loss and metrics.
        own_data: the run was trained on this data.
        skipped: examples of the split that can't be read.
        classes (lowest accuracy first), confused (pairs), mistakes (highest loss first): with task=classify. Other
        tasks have findings of their own.
        pictures: their files.

    Raises:
        CheckpointError: there is no trained run, its checkpoint can't be used, or a picture can't be written.
    """
    devices = resolve_devices(config.device)
    objective, own = open_measured(config)
    data = objective.data
    if not own:
        all_of_it = f"all its {data.train.size:,} {data.inputs.examples} are measured"
        say(f"{config.data.label} is not what the run was trained on: {all_of_it}")
        for note in data.notes:
            say(note)
    with explain_errors(config, data, devices.replicas, devices.workers):
        with devices.strategy.scope():
            trained = trained_model(config, objective.trained_on, data.fingerprint, config.state)
        alone = devices.workers == 1  # a worker that stopped alone would leave the others waiting for its sums
        with DeferredSignals() as interrupt:
            measured = measure_model(config, trained, objective, devices, lambda: interrupt.requested and alone)
    row = (measured.split, f"{measured.examples}", *map(format_measure, measured.means.values()))
    table(f"{trained.saved.path}", ("split", "examples", *measured.means), [row])
    say(f"{format_speed(measured.speed)} examples/s on {devices.description}")
    if not devices.chief:
        return None
    result = describe_evaluation(config, measured, data, trained, own=own)
    if left_out := result["skipped"]:
        counted = format_things(len(left_out), "example")
        warn(f"left out: {counted} that can't be read, which {result_file(config).name} names")
    if measured.report is not None:
        measured.report.show()
        title = f"{folder_of(config).name}, {format_things(measured.examples, f'{measured.split} example')}"
        file = result_file(config)
        pictures = list(map(str, measured.report.draw(title, file.parent, file.stem.removeprefix(FILE))))
        if pictures:
            say(f"drawn: {' and '.join(pictures)}")
        result["pictures"] = pictures
    part = f"the {measured.split}" if own else "all"
    before = trained.manifest.get("inputs", {}).get("shape")
    longer = "" if before in (None, data.inputs.shape) else f", of up to {data.inputs.describe()}"
    what = f"{part} {data.inputs.examples} of {config.data.label}{longer}"
    say(f"measured: the {config.state} state, update {trained.saved.step:,}, on {what}; in {result_file(config)}")
    return result
