"""The tasks, and the losses and metrics of their targets: keys, rules and entries. `TASKS`, `LOSSES`, `METRICS`.

A task is what a model predicts. Its targets are of one form, which losses, metrics and data share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from accumtrain.data.text.config import DocumentRows
from accumtrain.errors import ConfigError
from accumtrain.fields import (
    CLASSES,
    EACH,
    FRACTION,
    LABELS,
    MASKED,
    MASKS,
    NEXT,
    NOT_NEGATIVE,
    NUMBERS,
    POSITIVE,
    SHARE,
    TOKENS,
    OneOf,
    Range,
    Role,
    Word,
    format_value,
    suggest_names,
)
from accumtrain.registry import ComponentConfig, Entry, Registry

Code = str | Callable[..., Any]  # a function or class, or "module:attribute"

# ---- losses ----------------------------------------------------------------------------------------------------------

BALANCED = "balanced"
WEIGHTS = "must be balanced, a mapping from class names to weights, or for classes without names a list of weights"
POSITIVE_WEIGHTS = "must be balanced, or a mapping from labels to weights"
SHOWN = 12  # classes in a message


@dataclass(kw_only=True)
class LossConfig(ComponentConfig):
    """Base class of the keys of a loss. It has no keys of its own."""

    ROLE: ClassVar[Role] = Role.RULE | Role.MEASURED
    factors_key: ClassVar[str] = "loss.class_weights"  # that `factors` come from
    or_say: ClassVar[str] = ""  # another remedy, for the end of messages about a loss of the whole batch
    NOT_EVALUATED: ClassVar[Sequence[str]] = ()  # the keys that evaluations leave out, with their defaults

    @property
    def is_of_whole_batch(self) -> bool:
        """True if the loss is no mean over examples, but of all examples of an update."""
        return LOSSES[self.kind].whole_batch

    def for_training(self, names: Sequence[str], counts: Callable[[], list[int]]) -> LossConfig:
        """Return the loss that is minimised.

        Args:
            names: those of the classes, labels or numbers in their order; empty if they are numbered.
            counts: returns the number of training examples of each class, as `Objective.count` does.
        """
        return self

    @property
    def for_evaluation(self) -> LossConfig:
        """The loss that evaluations measure."""
        return replace(self, **{key: getattr(type(self)(), key) for key in self.NOT_EVALUATED})

    @property
    def factors(self) -> list[float]:
        """The factors on the losses of classes or labels, once `for_training` knows them; empty without any."""
        return []


@dataclass(kw_only=True)
class ClassWeightsConfig(LossConfig):
    """Keys of losses of classes.

    `class_weights`: factor on the cross-entropy of a class, by its name; 1 for those that are not named. A list is for
    classes without names, in their order. balanced gives all classes the same sum, so
    examples / (classes * examples of the class).
    """

    class_weights: Annotated[dict[str, float] | list[float] | str | None, Word(BALANCED, WEIGHTS)] = None

    def check(self) -> None:
        if self.class_weights is None or isinstance(self.class_weights, str):
            return
        named = isinstance(self.class_weights, dict)  # then those of other classes are 1
        weights = list(self.class_weights.values()) if isinstance(self.class_weights, dict) else self.class_weights
        if not weights or min(weights) < 0 or not (named or any(weights)):
            raise ConfigError(
                f"loss.class_weights={format_value(self.class_weights)}: must hold weights of at least 0, and one "
                f"above 0; for example {_quoted({'cat': 1.0, 'dog': 5.0})}"
            )

    def for_training(self, names: Sequence[str], counts: Callable[[], list[int]]) -> ClassWeightsConfig:
        """Raise ConfigError if weights are of other classes."""
        if self.class_weights is None:
            return self
        if isinstance(self.class_weights, dict):
            known = names or [str(number) for number in range(len(counts()))]
            return replace(self, class_weights=_in_order(self.class_weights, known))
        found = counts()
        if isinstance(self.class_weights, str):  # balanced
            present = sum(count > 0 for count in found)
            return replace(self, class_weights=[sum(found) / (present * count) if count else 0.0 for count in found])
        if names:
            named = dict(zip(names[:SHOWN], self.class_weights, strict=False))
            raise ConfigError(
                f"loss.class_weights={format_value(self.class_weights)}: a list has the order of the classes, here "
                f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}; name the classes, as "
                f"in {_quoted(named)}, others have the weight 1"
            )
        if len(self.class_weights) != len(found):
            raise ConfigError(
                f"loss.class_weights={format_value(self.class_weights)}: holds {len(self.class_weights)} weights, the "
                f"data has {len(found)} classes; give one for each, in their order, or loss.class_weights=balanced"
            )
        return self

    @property
    def factors(self) -> list[float]:
        return self.class_weights if isinstance(self.class_weights, list) else []


@dataclass(kw_only=True)
class CrossEntropyConfig(ClassWeightsConfig):
    """-log softmax(logits)[label]. Evaluations measure it without smoothing and weights.

    `label_smoothing`: share of the target that is spread evenly over all classes.
    """

    NOT_EVALUATED: ClassVar[Sequence[str]] = ("label_smoothing", "class_weights")

    kind: str = "cross_entropy"
    label_smoothing: Annotated[float, FRACTION] = 0.0


BATCH, EXAMPLE = "batch", "example"  # what overlaps are of


@dataclass(kw_only=True)
class PositionsConfig(ClassWeightsConfig):
    """A weighted sum of two losses of positions, such as pixels. Those without a class have no part in them.

    Evaluations measure it without class weights, and overlaps of loss.over=batch over all their examples.

    `entropy`: weight of -log softmax(logits)[class], in the mean over all positions of an update.
    `focus`: exponent of the focal loss (Lin et al. 2017, arXiv:1708.02002): the cross-entropy of a position is
    multiplied by (1 - p)^focus, where p is the probability of its class. 0: it is not.
    `overlap`: weight of 1 - hits / (hits + false_alarms * false positives + misses * false negatives), in the mean over
    the classes that are there. All are sums of probabilities (Salehi et al. 2017, arXiv:1706.05721).
    `false_alarms`, `misses`: weights of false positives and negatives in overlaps. 0.5 and 0.5 are the Dice coefficient
    (Milletari et al. 2016, arXiv:1606.04797).
    `over`: batch: overlaps are those of all examples of an update, and micro-batches are computed twice. example: they
    are of each example by itself, which counts by its positions.
    """

    NOT_EVALUATED: ClassVar[Sequence[str]] = ("class_weights",)
    or_say: ClassVar[str] = "; or give loss.over=example"

    kind: str = "positions"
    entropy: Annotated[float, NOT_NEGATIVE] = 1.0
    focus: Annotated[float, NOT_NEGATIVE] = 0.0
    overlap: Annotated[float, NOT_NEGATIVE] = 0.0
    false_alarms: Annotated[float, NOT_NEGATIVE] = 0.5
    misses: Annotated[float, NOT_NEGATIVE] = 0.5
    over: Annotated[str, OneOf((BATCH, EXAMPLE))] = BATCH

    @property
    def is_of_whole_batch(self) -> bool:
        return self.overlap > 0 and self.over == BATCH

    def check(self) -> None:
        super().check()
        if not self.entropy and not self.overlap:
            raise ConfigError("loss.entropy=0 and loss.overlap=0: nothing is left to learn; give one a weight above 0")
        if 0 < self.focus < 1:
            raise ConfigError(
                f"loss.focus={format_value(self.focus)}: the gradient of a certain position would be infinite; use 0, "
                "or 1 or more"
            )
        if self.overlap and not self.false_alarms + self.misses:
            raise ConfigError(
                "loss.false_alarms=0 and loss.misses=0: all overlaps would be 1; give one a weight above 0"
            )


@dataclass(kw_only=True)
class SigmoidCrossEntropyConfig(LossConfig):
    """-log of the probability, the sigmoid of the logit, of each label to be there or not. An unknown label adds 0.

    An example's loss is the sum over its labels by the number of all labels, known or not. So each known label weighs
    the same in whichever batch it comes. Evaluations measure it without weights.

    `positive_weights`: factor on the loss of the examples that have a label, by its name; 1 for those that are not
    named. balanced gives the examples that have a label the same sum as those that do not.
    """

    NOT_EVALUATED: ClassVar[Sequence[str]] = ("positive_weights",)

    kind: str = "sigmoid_cross_entropy"
    factors_key: ClassVar[str] = "loss.positive_weights"
    positive_weights: Annotated[dict[str, float] | str | None, Word(BALANCED, POSITIVE_WEIGHTS)] = None

    def check(self) -> None:
        weights = self.positive_weights
        if weights is None or isinstance(weights, str):
            return
        if not weights or min(weights.values()) <= 0:
            raise ConfigError(
                f"loss.positive_weights={format_value(weights)}: must name labels, each with a weight above 0; for "
                "example 'loss.positive_weights={bag:5.0}'"
            )

    def for_training(self, names: Sequence[str], counts: Callable[[], list[Any]]) -> SigmoidCrossEntropyConfig:
        """Raise ConfigError if weights are of other labels, or if no training example has a label, or lacks it.

        Args:
            counts: returns, for each label, the numbers of training examples that have it, and that do not.
        """
        weights = self.positive_weights
        if weights is None:
            return self
        found = counts()
        names = names or [str(number) for number in range(len(found))]
        if isinstance(weights, dict):
            ordered = _in_order(weights, names, "loss.positive_weights", "label")
            return replace(self, positive_weights=dict(zip(names, ordered, strict=True)))
        for name, (have, have_not) in zip(names, found, strict=True):
            if not have or not have_not:
                raise ConfigError(
                    f"loss.positive_weights=balanced: {'every' if have else 'no'} training example has the label "
                    f"{name}; leave its column out, or give weights by name"
                )
        ratios = {name: have_not / have for name, (have, have_not) in zip(names, found, strict=True)}
        return replace(self, positive_weights=ratios)

    @property
    def factors(self) -> list[float]:
        return [*self.positive_weights.values()] if isinstance(self.positive_weights, dict) else []


@dataclass(kw_only=True)
class SquaredErrorConfig(LossConfig):
    """The square of the error of each number, in standard deviations of the training examples. An unknown one adds 0.

    An example's loss is the sum over its numbers by the number of all, known or not.
    """

    kind: str = "squared_error"


@dataclass(kw_only=True)
class AbsoluteErrorConfig(LossConfig):
    """The size of the error of each number, in standard deviations, as in squared_error."""

    kind: str = "absolute_error"


@dataclass(kw_only=True)
class HuberConfig(LossConfig):
    """Half the square of an error of up to loss.delta, and beyond it a line, which far values pull less.

    Errors are in standard deviations, as in squared_error (Huber 1964).

    `delta`: size of an error, in standard deviations, from which on the loss is a line.
    """

    kind: str = "huber"
    delta: Annotated[float, POSITIVE] = 1.0


@dataclass(kw_only=True)
class TokenCrossEntropyConfig(LossConfig):
    """-log softmax(logits)[token], in nats: the mean over all tokens of an update that are to be told."""

    kind: str = "token_cross_entropy"


def _in_order(
    weights: Mapping[str, float], names: Sequence[str], key: str = "loss.class_weights", what: str = "class"
) -> list[float]:
    """Return the weights of the classes or labels `names`, 1 for those without."""
    for name, weight in weights.items():
        if name not in names:
            raise ConfigError(f"{key}.{name}={format_value(weight)}: no such {what}; {suggest_names(name, names)}")
    factors = [weights.get(name, 1.0) for name in names]
    if not any(factors):
        raise ConfigError(
            f"loss.class_weights={format_value(weights)}: no class is left to learn; give one a weight above 0"
        )
    return factors


def _quoted(weights: Mapping[str, float]) -> str:
    """Return the key as a command has it: a shell makes several words of braces and commas."""
    return f"'loss.class_weights={format_value(weights)}'"


@dataclass(frozen=True)
class LossEntry(Entry[LossConfig]):
    """A loss.

    Attributes:
        targets: the forms of targets that it takes.
        metrics: the metrics where eval.metrics is null, by name: functions like the loss, or "module:function". None is
            those of the task.
        whole_batch: the loss is a function of the labels [B] and the outputs [B, ...] of an update to one number.
    """

    targets: tuple[str, ...] = (CLASSES,)
    metrics: Mapping[str, Code] | None = None
    whole_batch: bool = False


LOSSES: Registry[LossEntry] = Registry("loss.kind")
LOSSES.add(
    LossEntry(CrossEntropyConfig, "accumtrain.tasks.classify:build_cross_entropy"),
    LossEntry(SigmoidCrossEntropyConfig, "accumtrain.tasks.multilabel:build_loss", (LABELS,)),
    LossEntry(SquaredErrorConfig, "accumtrain.tasks.regress:build_squared_error", (NUMBERS,)),
    LossEntry(AbsoluteErrorConfig, "accumtrain.tasks.regress:build_absolute_error", (NUMBERS,)),
    LossEntry(HuberConfig, "accumtrain.tasks.regress:build_huber", (NUMBERS,)),
    LossEntry(TokenCrossEntropyConfig, "accumtrain.tasks.texts.tokens:build_token_cross_entropy", (TOKENS,)),
    LossEntry(PositionsConfig, "accumtrain.tasks.positions.losses:build_positions", (MASKS,)),
)

# ---- metrics, chosen by eval.metrics ---------------------------------------------------------------------------------

ACCURACY = "accuracy"
LOSS = "loss"


@dataclass(frozen=True)
class MetricEntry:
    """A metric.

    Attributes:
        function: (labels [N], logits [N, classes]) -> values [N] in the dtype of the logits, or "module:function".
        higher_is_better: the direction in which it decides which state is the best.
        targets: the forms of targets that it takes.
        whole_split: it is no mean over examples. Its function takes NumPy arrays of all examples of a split, of their
            targets and of the outputs, and returns a number. Of positions it takes their confusions, int64 [C, C].
        of_mean: from the mean of the function's values over the examples of an evaluation to the metric, or
            "module:function"; None if it is the mean itself.
    """

    name: str
    function: Code
    higher_is_better: bool = True
    targets: tuple[str, ...] = (CLASSES,)
    whole_split: bool = False
    of_mean: Code | None = None


METRICS: Registry[MetricEntry] = Registry("eval.metrics")
METRICS.add(
    MetricEntry(ACCURACY, "accumtrain.engine.losses:accuracy"),
    MetricEntry("top5", "accumtrain.engine.losses:top5"),
    MetricEntry("map", "accumtrain.tasks.scores:mean_average_precision", targets=(LABELS,), whole_split=True),
    MetricEntry("f1", "accumtrain.tasks.scores:macro_f1", targets=(LABELS,), whole_split=True),
    MetricEntry("mae", "accumtrain.tasks.scores:mean_absolute_error", False, targets=(NUMBERS,), whole_split=True),
    MetricEntry("rmse", "accumtrain.tasks.scores:root_mean_squared_error", False, targets=(NUMBERS,), whole_split=True),
    MetricEntry("r2", "accumtrain.tasks.scores:r2", targets=(NUMBERS,), whole_split=True),
    MetricEntry("mean_iou", "accumtrain.tasks.positions.scores:mean_iou", targets=(MASKS,), whole_split=True),
    MetricEntry("mean_dice", "accumtrain.tasks.positions.scores:mean_dice", targets=(MASKS,), whole_split=True),
    MetricEntry("pixel_accuracy", "accumtrain.tasks.positions.losses:position_accuracy", targets=(MASKS,)),
    MetricEntry("token_accuracy", "accumtrain.tasks.texts.tokens:token_accuracy", targets=(TOKENS,)),
    MetricEntry(
        "perplexity",
        "accumtrain.tasks.texts.tokens:token_cross_entropy",
        higher_is_better=False,
        targets=(TOKENS,),
        of_mean="accumtrain.tasks.texts.tokens:perplexity",
    ),
)

# ---- tasks -----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class TaskConfig(ComponentConfig):
    """Base class of the keys of a task. It has no keys of its own."""

    @property
    def rows(self) -> DocumentRows | None:
        """The way in which texts become rows of tokens and of those that follow; None if they do not."""
        return None


@dataclass(kw_only=True)
class ClassifyConfig(TaskConfig):
    """Each example is of one class."""

    kind: str = "classify"


@dataclass(kw_only=True)
class MultilabelConfig(TaskConfig):
    """Each example has several labels, one or none."""

    kind: str = "multilabel"


@dataclass(kw_only=True)
class RegressConfig(TaskConfig):
    """Each example has a number, or several."""

    kind: str = "regress"


@dataclass(kw_only=True)
class SegmentConfig(TaskConfig):
    """Each pixel is of one class, or of none that is known."""

    kind: str = "segment"


@dataclass(kw_only=True)
class MaskedTokensConfig(TaskConfig):
    """Some tokens of each example are masked, and predicted from the others (Devlin et al. 2018, arXiv:1810.04805).

    `share`: share of the tokens of an example that are to be predicted, at least one.
    `masked`: share of these that the model sees as the mask token.
    `random`: share of these that it sees as a random token. It sees the others unchanged.
    """

    kind: str = "masked_tokens"
    share: Annotated[float, Range(0, 1, above=True, closed=True)] = 0.15
    masked: Annotated[float, SHARE] = 0.8
    random: Annotated[float, SHARE] = 0.1

    def check(self) -> None:
        if self.masked + self.random > 1.0:
            raise ConfigError(
                f"task.masked={format_value(self.masked)} and task.random={format_value(self.random)}: must be at most "
                "1 together; lower one of them"
            )


@dataclass(kw_only=True)
class NextTokenConfig(TaskConfig):
    """The next token of texts is learned, from those before it. A text, or a prompt with its answer, is a document.

    `packing`: true: documents stand one behind the other in rows of data.length tokens, none of which sees another
    document. false: each document begins a row, and rows are padded.
    `end`: the token that ends each document, as the tokenizer's file writes it. null: that of the file's
    post-processor, or else a special one with a well-known name, such as </s>. The tokens of data.tokenizer=bytes have
    none.
    """

    kind: str = "next_token"
    packing: bool = True
    end: str | None = None

    @property
    def rows(self) -> DocumentRows:
        return DocumentRows(self.packing, self.end)


@dataclass(frozen=True)
class TaskEntry(Entry[TaskConfig]):
    """A task. `build` is a subclass of `accumtrain.tasks.objective.Objective`, or "module:class".

    Attributes:
        answer: a subclass of `accumtrain.tasks.answer.Answer`, or "module:class".
        loss: the configuration of the loss where none is chosen.
        metrics: names of the metrics that are measured where eval.metrics is null.
        best: the metric that decides which state is the best, if it is measured and no other is chosen; or `loss`.
        targets: the form of its targets.
        mixes: the targets of two examples can be mixed, by data.mixup and data.cutmix.
        balances: its targets are classes, which data.sampling=balanced makes equally frequent.
        chooses_metrics: eval.metrics may choose others.
        tells: the tokens that its model tells: MASKED ones, or the NEXT of each. EACH: a class for each position. None:
            it tells of whole examples.
    """

    answer: Code = "accumtrain.tasks.answer:Answer"
    loss: type[LossConfig] = CrossEntropyConfig
    metrics: tuple[str, ...] = (ACCURACY,)
    best: str = ACCURACY
    targets: str = CLASSES
    mixes: bool = True
    balances: bool = True
    chooses_metrics: bool = True
    tells: str | None = None


TASKS: Registry[TaskEntry] = Registry("task.kind")
TASKS.add(
    TaskEntry(ClassifyConfig, "accumtrain.tasks.classify:Classify", "accumtrain.tasks.classify:ClassAnswer"),
    TaskEntry(
        MultilabelConfig,
        "accumtrain.tasks.multilabel:Multilabel",
        "accumtrain.tasks.multilabel:LabelAnswer",
        loss=SigmoidCrossEntropyConfig,
        metrics=("map", "f1"),
        best="map",
        targets=LABELS,
        balances=False,
    ),
    TaskEntry(
        RegressConfig,
        "accumtrain.tasks.regress:Regress",
        "accumtrain.tasks.regress:NumberAnswer",
        loss=SquaredErrorConfig,
        metrics=("mae", "rmse", "r2"),
        best=LOSS,
        targets=NUMBERS,
        mixes=False,
        balances=False,
    ),
    TaskEntry(
        SegmentConfig,
        "accumtrain.tasks.positions.segment:Segmentation",
        "accumtrain.tasks.positions.segment:MaskAnswer",
        loss=PositionsConfig,
        metrics=("mean_iou", "mean_dice", "pixel_accuracy"),
        best="mean_iou",
        targets=MASKS,
        mixes=False,
        balances=False,
        tells=EACH,
    ),
    TaskEntry(
        MaskedTokensConfig,
        "accumtrain.tasks.texts.masked_tokens:MaskedTokens",
        "accumtrain.tasks.texts.masked_tokens:TokenAnswer",
        loss=TokenCrossEntropyConfig,
        metrics=("perplexity", "token_accuracy"),
        best=LOSS,
        targets=TOKENS,
        mixes=False,
        balances=False,
        tells=MASKED,
    ),
    TaskEntry(
        NextTokenConfig,
        "accumtrain.tasks.texts.next_token:NextToken",
        "accumtrain.tasks.texts.next_token:NextTokenAnswer",
        loss=TokenCrossEntropyConfig,
        metrics=("perplexity", "token_accuracy"),
        best=LOSS,
        targets=TOKENS,
        mixes=False,
        balances=False,
        tells=NEXT,
    ),
)


def chosen_metrics(task: TaskConfig, loss: LossConfig, chosen: Sequence[str] | None) -> list[MetricEntry]:
    """Return the metrics of a run: eval.metrics, or `default_metrics` if that is null."""
    return default_metrics(task, loss) if chosen is None else [METRICS[name] for name in chosen]


def default_metrics(task: TaskConfig, loss: LossConfig) -> list[MetricEntry]:
    """Return the metrics of the loss of a run, or those of its task if the loss has none of its own."""
    entry = LOSSES[loss.kind]
    if entry.metrics is None:
        return [METRICS[name] for name in TASKS[task.kind].metrics]
    return [MetricEntry(name, function, targets=entry.targets) for name, function in entry.metrics.items()]


def gives_answers(task: TaskConfig, loss: LossConfig) -> bool:
    """Return whether the model of a run answers its task: the loss has the measure of the task by default."""
    best = TASKS[task.kind].best
    return best == LOSS or best in [metric.name for metric in default_metrics(task, loss)]
