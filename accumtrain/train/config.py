"""The keys of a training, the measure that decides which state is the best, and the trackers: `BestBy`, `TRACKERS`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from accumtrain.fields import COUNT, LOCAL_PATH, NOT_NEGATIVE, POSITIVE, NotEmpty, Range, Role, Word
from accumtrain.registry import NameIn, NamesIn, Registry
from accumtrain.tasks.config import LOSS, METRICS, TASKS, Code, LossConfig, TaskConfig, chosen_metrics


@dataclass(frozen=True)
class BestBy:
    """The measure that decides which state is the best: a metric, then the loss; or the loss alone."""

    metric: str
    higher_is_better: bool

    @classmethod
    def of(
        cls,
        task: TaskConfig,
        loss: LossConfig,
        chosen: Sequence[str] | None,
        monitor: str | None,
        measured: Collection[str] | None = None,
    ) -> BestBy:
        """Return what a run monitors. Without a choice it is the first metric, or else the loss.

        Args:
            chosen: eval.metrics.
            monitor: train.monitor.
            measured: names of the metrics that are measured; None is those that the keys tell.
        """
        best = TASKS[task.kind].best
        if measured is None:
            measured = [metric.name for metric in chosen_metrics(task, loss, chosen)]
        first = [best] if chosen is None and best in measured else chosen
        name = monitor or (first[0] if first else LOSS)
        return cls(name, name != LOSS and METRICS[name].higher_is_better)

    def rank(self, result: Mapping[str, Any]) -> tuple[float, float]:
        """Return the rank of an evaluation's result, which is higher for a better state.

        Args:
            result: loss and metrics by name. A value that is missing, None or no number has the lowest rank.
        """
        return self.score(result), self._signed(result.get(LOSS), higher_is_better=False)

    def score(self, result: Mapping[str, Any]) -> float:
        """Return the value of an evaluation's result that is monitored, with the sign by which higher is better."""
        return self._signed(result.get(self.metric), self.higher_is_better)

    @staticmethod
    def _signed(value: float | None, higher_is_better: bool) -> float:
        if value is None or math.isnan(value):
            return -math.inf
        return value if higher_is_better else -value


# ---- trackers, chosen by log.tracker ---------------------------------------------------------------------------------

NONE = "none"  # value of log.tracker


@dataclass(frozen=True)
class TrackerEntry:
    """A service that a run's records can be sent to.

    Attributes:
        open: (name of the run, its folder, its configuration by dotted key) -> Tracker, or "module:function".
        package: the module that must be installed, where an extra of accumtrain installs it.
        extra: its name.
    """

    name: str
    open: Code
    package: str | None = None
    extra: str | None = None


TRACKERS: Registry[TrackerEntry] = Registry("log.tracker")
TRACKERS.add(
    TrackerEntry("mlflow", "accumtrain.train.tell.trackers:MlflowTracker", "mlflow", "mlflow"),
    TrackerEntry("wandb", "accumtrain.train.tell.trackers:WandbTracker", "wandb", "wandb"),
)


# ---- keys ------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class TrainConfig:
    """The length of a run.

    `epochs`: passes over the training examples; a fraction is allowed.
    `steps`: number of updates; takes precedence over train.epochs.
    `patience`: the run ends after this many evaluations in a row without a new best; null: it never ends early.
    `monitor`: the value that decides which state is the best: loss, or a metric that is measured. null: the first of
    eval.metrics, or what the task names, which is accuracy for task=classify. Reports and sweeps rank by it, too.
    `min_delta`: the smallest improvement that train.patience counts as better. It does not change which state is the
    best.
    """

    epochs: Annotated[float | None, POSITIVE] = 25.0
    steps: Annotated[int | None, COUNT] = None
    patience: Annotated[int | None, COUNT] = None
    monitor: Annotated[str | None, Role.RULE | Role.BEST] = None
    min_delta: Annotated[float, NOT_NEGATIVE] = 0.0


@dataclass(kw_only=True)
class EvalConfig:
    """The times at which a run evaluates, and what it measures.

    `every`: updates from one evaluation to the next; epoch: after each epoch.
    `metrics`: metrics that are measured beside the loss. null: those of the task, or of a loss that has its own.
    train.monitor says which of them decides.
    """

    every: Annotated[
        int | str, COUNT, Word("epoch", "must be a number of updates or epoch; for example eval.every=epoch")
    ] = "epoch"
    metrics: Annotated[list[str] | None, NamesIn(METRICS), Role.RULE | Role.BEST] = None


@dataclass(kw_only=True)
class CheckpointConfig:
    """The times at which a run saves its state, and the number of states it keeps.

    `every`: updates from one checkpoint to the next.
    `keep`: number of latest checkpoints that are kept.
    `keep_hours`: also keep one checkpoint for every period of this many hours; null: none.
    """

    every: Annotated[int, COUNT] = 200
    keep: Annotated[int, COUNT] = 3
    keep_hours: Annotated[float | None, POSITIVE] = None


@dataclass(kw_only=True)
class LogConfig:
    """The records of a run.

    `every`: updates from one record of the metrics to the next. The progress line shows means over the same number of
    updates.
    `images`: number of training images, augmented, that TensorBoard shows; 0: none.
    `tracker`: service that also receives the records: none, mlflow, wandb, or one that you have registered.
    `noise`: measure the noise scale of the gradient (McCandlish et al. 2018, arXiv:1812.06162) from the micro-batches
    of each update. The records get noise_scale and its two parts, means over the last 100 updates or so.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    every: Annotated[int, COUNT] = 10
    images: Annotated[int, Range(0, 64)] = 4
    tracker: Annotated[str, NameIn(TRACKERS, (NONE,))] = NONE
    noise: bool = False


@dataclass(kw_only=True)
class PredictConfig:
    """The images or texts that job=predict answers for, and the place of its results.

    `input`: an image, a folder that is searched for images, or a glob. Of a run on texts: a file or a folder of texts,
    a glob, or an .npz file of tokens.
    `output`: a folder for predictions.csv and predictions.jsonl, or one such file; null: the run's folder.
    `top`: number of classes listed for each example, the most probable first. With task=masked_tokens: of tokens for
    each mask. With task=next_token: of tokens behind each text.
    `tokens`: with task=next_token: the most tokens that are written behind each text; both together have at most
    data.length. 0: the probabilities of the token behind it are told instead. A SavedModel writes as many.
    `temperature`: divides the logits, from whose softmax written tokens are drawn; 0: the most probable are written.
    `top_k`: number of the most probable tokens that may be drawn; null: all.
    `top_p`: sum of the probabilities of the tokens that may be drawn, the most probable first; the one that reaches it
    is the last (Holtzman et al. 2019, arXiv:1904.09751).
    `draw`: number of the draw: another one writes other tokens. They depend on it and on the number of the text alone.
    `raw`: whether predictions.csv has texts as they are. Otherwise a text that a spreadsheet would compute, such as
    =1+1, begins with a quote ('), and control characters are escapes. predictions.jsonl always has texts as they are.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    input: Annotated[str | None, NotEmpty("say which images, predict.input=<file, folder or glob>"), LOCAL_PATH] = None
    output: Annotated[str | None, NotEmpty("leave it out to write into the run's folder"), LOCAL_PATH] = None
    top: Annotated[int, COUNT] = 3
    tokens: Annotated[int, NOT_NEGATIVE] = 100
    temperature: Annotated[float, NOT_NEGATIVE] = 0.0
    top_k: Annotated[int | None, COUNT] = None
    top_p: Annotated[float, Range(0, 1, above=True, closed=True)] = 1.0
    draw: Annotated[int, NOT_NEGATIVE] = 0
    raw: bool = False


@dataclass(kw_only=True)
class DebugConfig:
    """Settings for finding mistakes in a model.

    `eager`: run micro-steps without graphs, so that a debugger and prints work inside layers. This is slow. Jobs and
    settings that measure compiled graphs refuse it: job=bench, memory, plan and verify; accum.steps=auto; a number for
    model.memory; on a CPU, device.memory_limit_mb.
    `profile`: number of updates to profile for TensorBoard, after the first three of a session; null: none.
    """

    ROLE: ClassVar[Role] = Role.COMMAND

    eager: bool = False
    profile: Annotated[int | None, COUNT, Role.COMMAND | Role.SESSION] = None
