"""The registries of the groups of keys, and the functions that add to these, to metrics, trackers and jobs.

A program or an installed package calls them before the command line is read. A configuration then chooses the entry by
name. It never names code itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from accumtrain.config.jobs import JOBS, Job
from accumtrain.config.schema import Config
from accumtrain.data.config import DataConfig
from accumtrain.data.sources.config import INPUTS, SOURCES, InputEntry, SourceEntry
from accumtrain.devices.config import DEVICES
from accumtrain.fields import CLASSES, MASKED, NOISE, TOKENS
from accumtrain.models.config import MODELS, ModelConfig
from accumtrain.models.keras.config import KERASHUB
from accumtrain.models.published.config import PRETRAINED
from accumtrain.models.transformers.config import TRANSFORMERS
from accumtrain.optim.config import OPTIMIZERS, OptimConfig
from accumtrain.optim.schedules import SCHEDULES, ScheduleConfig
from accumtrain.registry import ComponentConfig, Entry, Registry, module_of, with_kind
from accumtrain.tasks.config import (
    LOSS,
    LOSSES,
    METRICS,
    TASKS,
    Code,
    LossConfig,
    LossEntry,
    MetricEntry,
    TaskConfig,
    TaskEntry,
)
from accumtrain.train.config import NONE, TRACKERS, TrackerEntry

Keys = TypeVar("Keys", bound=ComponentConfig)

REGISTRIES: dict[str, Registry[Any]] = {
    "task": TASKS,
    "model": MODELS,
    "optim": OPTIMIZERS,
    "schedule": SCHEDULES,
    "loss": LOSSES,
    "data": SOURCES,
    "device": DEVICES,
}
MODELS.add(*TRANSFORMERS, PRETRAINED, KERASHUB)
BUILTIN_CODE = "accumtrain."  # beginning of the modules with accumtrain's own code


def has_only_builtin_entries(config: Config) -> bool:
    """Return whether accumtrain's own code builds all that a configuration chooses."""
    chosen = [(registry, getattr(config, group).kind) for group, registry in REGISTRIES.items()]
    return all(kind in known.names and module_of(known[kind].build).startswith(BUILTIN_CODE) for known, kind in chosen)


def has_builtin_layers(config: Config) -> bool:
    """Return whether all layers are accumtrain's, which choose the dtype of their kernels; Keras's do not."""
    return config.model.kind != "keras" and has_only_builtin_entries(config)


# Values of records and updates beside metrics.
TAKEN = {
    *("loss", "step", "epoch", "split", "seconds", "examples", "examples_per_second", "learning_rate", "grad_norm"),
    *(
        "weight",
        *NOISE,
        "loss_scale",
        "skipped",
        "finite",
        "state_finite",
        "stop",
        "exact",
        "compared",
        "in_range",
        "bits_per_byte",
    ),
}

# ---- registration ----


def register_model(name: str, build: Code, config: type[ModelConfig] = ModelConfig) -> type[ModelConfig]:
    """Make `model=<name>` a choice.

    Args:
        build: (config, spec: ModelSpec) -> Model, or "module:function" that is imported on first use.
        config: a dataclass that inherits from ModelConfig and declares the model's own keys with their defaults.

    Returns:
        The dataclass of the entry, for configurations written in Python.

    Raises:
        ValueError: the name is taken, or has another form: a letter or _, then letters, digits, - and _.
        TypeError: `config` is not a dataclass that inherits from ModelConfig.
    """
    return _register(MODELS, name, build, config, ModelConfig)


def register_optimizer(name: str, build: Code, config: type[OptimConfig] = OptimConfig) -> type[OptimConfig]:
    """Make `optim=<name>` a choice.

    Args:
        build: a subclass of Optimizer, or "module:class". It is called with the keys of `config` as keyword arguments:
            without `kind`, `rates`, `layer_decay`, `clip_norm` and `adaptive_clip`, and with `lr` as `learning_rate`.
        config: a dataclass that inherits from OptimConfig.

    It returns and raises the same as `register_model`.
    """
    return _register(OPTIMIZERS, name, build, config, OptimConfig)


def register_schedule(name: str, config: type[ScheduleConfig]) -> type[ScheduleConfig]:
    """Make `schedule=<name>` a choice.

    Args:
        config: a dataclass that inherits from ScheduleConfig, with the keys and the method `factor_at(t, total)`.

    It returns the same as `register_model`.

    Raises:
        ValueError: as for `register_model`.
        TypeError: as for `register_model`; or `config` has no `factor_at` of its own.
    """
    keys: Any = with_kind(name, config, ScheduleConfig)
    if keys.factor_at is ScheduleConfig.factor_at:
        raise TypeError(f"schedule={name}: {config.__name__} has no factor_at(self, t, total); write its formula there")
    SCHEDULES.add(Entry(keys, keys))
    return keys


def register_task(
    name: str,
    objective: Code,
    config: type[TaskConfig] = TaskConfig,
    *,
    answer: Code = TaskEntry.answer,
    loss: type[LossConfig],
    metrics: Sequence[str] = (),
    best: str = LOSS,
    targets: str = CLASSES,
) -> type[TaskConfig]:
    """Make `task=<name>` a choice.

    Args:
        objective: a subclass of `accumtrain.Objective`, or "module:class", which has the targets, loss and metrics.
        answer: a subclass of `accumtrain.Answer`, or "module:class", which tells what the outputs of the trained model
            mean. The default tells the outputs as they are.
        config: a dataclass that inherits from TaskConfig. It is returned as by `register_model`.
        loss: the dataclass of the loss that is minimised where none is chosen.
        metrics: names of the metrics that are measured where eval.metrics is null.
        best: the one of them that decides which state is the best, or `loss`.
        targets: the form of its targets: `classes`, `labels`, `numbers`, or one of your own, which your data, loss and
            metrics are then registered with, too.

    Raises:
        ValueError: as for `register_model`; or the loss takes other targets, or `best` is not measured.
        TypeError: as for `register_model`; or `loss` is no class of a registered loss, or `metrics` is one text.
    """
    keys: Any = with_kind(name, config, TaskConfig)
    if not (isinstance(loss, type) and issubclass(loss, LossConfig) and loss.kind in LOSSES.entries):
        raise TypeError(
            f"task={name}: {loss!r} is no registered loss; give what register_loss returns, or a class such as "
            "accumtrain.CrossEntropyConfig"
        )
    if targets not in (taken := LOSSES[loss.kind].targets):
        raise ValueError(
            f"task={name}: its targets are {targets}, and loss={loss.kind} takes {' or '.join(taken)}; give "
            "another loss, or targets of that form"
        )
    if isinstance(metrics, str):
        raise TypeError(f"task={name}: metrics={metrics!r} is a text; give a list of names, [{metrics!r}]")
    if best not in (LOSS, *metrics):
        raise ValueError(f"task={name}: best={best} is none of its metrics; choose from {', '.join((LOSS, *metrics))}")
    mixes = balances = targets == CLASSES
    tells = MASKED if targets == TOKENS else None
    TASKS.add(TaskEntry(keys, objective, answer, loss, tuple(metrics), best, targets, mixes, balances, tells=tells))
    return keys


def register_loss(
    name: str,
    build: Code,
    config: type[LossConfig] = LossConfig,
    metrics: Mapping[str, Code] | None = None,
    whole_batch: bool = False,
    targets: str = CLASSES,
) -> type[LossConfig]:
    """Make `loss=<name>` a choice.

    Args:
        build: (config) -> loss, or "module:function". The loss is a function (labels [N] of an integer dtype, logits
            [N, classes]) -> losses [N] in the dtype of the logits.
        whole_batch: the loss compares examples with each other, or divides by a number of the whole batch. It is then
            a function (labels [B], logits [B, classes]) -> one number, of the B examples of an update. Each micro-batch
            is computed twice (Gao et al. 2021, arXiv:2101.06983).
        metrics: the metrics where eval.metrics is null, by name: functions like the loss, or "module:function". None
            is those of the task. The best state is that of the highest `accuracy`; without it, of the lowest loss.
        targets: the form of the targets that it takes. `classes` are integers [N]. `labels` are float32 [N, labels] of
            0, 1, or NaN for an unknown one. `numbers` are float32 [N, numbers], standardised, or NaN. Cast floats to
            the dtype of the logits, which is float64 in job=verify.
        config: a dataclass that inherits from LossConfig.

    It returns and raises the same as `register_model`.
    """
    keys: Any = with_kind(name, config, LossConfig)
    LOSSES.add(LossEntry(keys, build, (targets,), metrics, whole_batch))
    return keys


def register_metric(
    name: str, function: Code, higher_is_better: bool = True, *, targets: str = CLASSES, whole_split: bool = False
) -> None:
    """Make `eval.metrics=[<name>]` a choice.

    Args:
        function: (labels [N] of an integer dtype, logits [N, classes]) -> values [N] in the dtype of the logits, or
            "module:function".
        higher_is_better: the direction in which it decides which state is the best, as the first of eval.metrics.
        targets: the form of the targets that it takes, as of `register_loss`.
        whole_split: it is no mean over examples. The function takes NumPy arrays of all examples of a split, their
            targets and the outputs of the model, and returns a number. With task=regress, and tasks that inherit from
            it, both are in the units of the table. Evaluations keep both in memory.

    Raises:
        ValueError: the name is taken, also by another value of a record. Or it has another form: a letter or _, then
            letters, digits, - and _.
    """
    if name in TAKEN:
        raise ValueError(f"eval.metrics: {name} is already the name of a value in the records; choose another name")
    METRICS.add(MetricEntry(name, function, higher_is_better, (targets,), whole_split))


def register_tracker(name: str, open: Code) -> None:
    """Make `log.tracker=<name>` a choice.

    Args:
        open: (name of the run, its folder, its configuration by dotted key) -> a tracker, or "module:function". A
            tracker has three methods. `log(record)` takes each record of metrics.jsonl. `finish(summary)` takes the
            content of summary.json at the end of a session. `close()` ends it, also without a summary. Its first error
            is told, and the training goes on without it; an error of `open` ends the run.

    Raises:
        ValueError: the name is taken, or has another form: a letter or _, then letters, digits, - and _.
    """
    if name == NONE:
        raise ValueError(f"log.tracker={name} stands for no tracker; choose another name")
    TRACKERS.add(TrackerEntry(name, open))


def register_data(
    name: str, build: Code, config: type[DataConfig] = DataConfig, targets: str = CLASSES
) -> type[DataConfig]:
    """Make `data=<name>` a choice.

    Args:
        build: (config, seed) -> Source, or "module:function".
        config: a dataclass that inherits from DataConfig.
        targets: the form of its targets, as of `register_loss`.

    It returns and raises the same as `register_model`.
    """
    keys: Any = with_kind(name, config, DataConfig)
    SOURCES.add(SourceEntry(keys, build, (targets,), takes_seed=True))
    return keys


def register_inputs(kind: Any) -> Any:
    """Make a kind of inputs known, so that a run whose data has them is opened again.

    Args:
        kind: a subclass of `accumtrain.Inputs` with a `kind` of its own. It is returned, so this can decorate it.

    Raises:
        ValueError: the name is taken, or is not a letter or _, then letters, digits, - and _.
    """
    INPUTS.add(InputEntry(kind.kind, kind))
    return kind


def register_job(name: str, run: Code, file: str | None = None, **attributes: Any) -> None:
    """Make `job=<name>` a choice.

    Args:
        run: (config: Config) -> the content of the job's file, a dict; or "module:function". When it is called, the
            run's folder exists and TensorFlow is imported.
        file: name of the file of the result, in the run's folder; None is `<name>.json`.
        attributes: others of `config.jobs.Job`, such as `scope="trained"`.

    Raises:
        ValueError: the name is taken, or has another form: a letter or _, then letters, digits, - and _. Or the scope
            is unknown.
    """
    JOBS.add(Job(name, run, file or f"{name}.json", **attributes))


def list_added_modules() -> set[str]:
    """Return the modules of all code that was registered from outside."""
    codes = [
        *(entry.build for registry in REGISTRIES.values() for entry in registry),
        *(code for loss in LOSSES for code in (loss.metrics or {}).values()),
        *(code for job in JOBS for code in (job.run, job.check)),
        *(metric.function for metric in METRICS),
        *(tracker.open for tracker in TRACKERS),
        *(kind.build for kind in INPUTS),
    ]
    modules = {module_of(code) for code in codes if code is not None}
    return {name for name in modules if not name.startswith(BUILTIN_CODE)}


def _register(
    registry: Registry[Any], name: str, build: Code, config: type[Keys], base: type[ComponentConfig]
) -> type[Keys]:
    keys: Any = with_kind(name, config, base)
    registry.add(Entry(keys, build))
    return keys
