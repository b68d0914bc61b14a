"""Rules between the keys of a configuration. Each message names the key, the value, the rule and the remedy."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.imagenet import check_imagenet
from accumtrain.config.jobs import JOBS, Job
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.data.config import DataConfig
from accumtrain.data.sources.config import SOURCES
from accumtrain.devices.config import TpuConfig
from accumtrain.errors import ConfigError
from accumtrain.export.config import FORMATS
from accumtrain.fields import (
    COUNT,
    JAX,
    Constraint,
    check_size,
    constraints_of,
    format_value,
    shorten,
    suggest_names,
    walk_values,
)
from accumtrain.models.config import ONE
from accumtrain.registry import ComponentConfig
from accumtrain.tasks.config import (
    BALANCED,
    LOSS,
    LOSSES,
    METRICS,
    TASKS,
    CrossEntropyConfig,
    MetricEntry,
    TaskConfig,
    chosen_metrics,
    gives_answers,
)
from accumtrain.train.config import NONE, TRACKERS, TrackerEntry

RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,199}")


def check_config(config: Config) -> None:
    """Raise ConfigError for the first rule that `config` breaks.

    Constraints on one value are declared in its type, and the rules of a kind are in its `check`. All others are here.
    """
    for key, value in walk_values(dataclasses.asdict(config)):
        if isinstance(value, int | float) and not isinstance(value, bool):
            check_size(key, value)
    for key, value, constraint in _constraints(config):
        constraint.check(key, value)
    if config.train.epochs is None and config.train.steps is None:
        raise ConfigError("train.epochs=null and train.steps=null: one must be set; for example train.epochs=20")
    if config.range_test.low >= config.range_test.high:
        raise ConfigError(
            f"range_test.low={format_value(config.range_test.low)} and "
            f"range_test.high={format_value(config.range_test.high)}: the rate rises from low to high; give a lower "
            "range_test.low"
        )
    predict = config.predict
    if (
        config.job == "predict"
        and predict.temperature == 0
        and (predict.top_k is not None or predict.top_p < 1 or predict.draw)
    ):
        raise ConfigError(
            "predict.temperature=0: the most probable tokens are written, and none is drawn by predict.top_k, "
            "predict.top_p or predict.draw; leave these out, or use predict.temperature=1"
        )
    for group in REGISTRIES:
        choice: ComponentConfig = getattr(config, group)
        choice.check()
    config.ema.check()
    config.model.check_precision(config.precision)
    check_imagenet(config.model, config.data)
    if config.device.tensor_float_32 and config.precision != "float32":
        raise ConfigError(
            f"device.tensor_float_32=true: rounds products of float32, and precision={config.precision} has none; "
            "leave one of the two out"
        )
    if config.model.weights is not None and config.optim.forgets_weights:
        raise ConfigError(
            f"model.weights={config.model.weights}: {config.optim.label} computes weights anew from the gradients, so "
            "its first update would lose what is loaded; choose another optimizer, such as optim=adam"
        )
    _check_ramp(config)
    _check_task(config)
    if isinstance(config.loss, CrossEntropyConfig) and config.loss.class_weights == BALANCED == config.data.sampling:
        raise ConfigError(
            "loss.class_weights=balanced and data.sampling=balanced: each alone makes up for rare classes, both "
            "together make them count twice; leave one of the two out"
        )
    if config.run.name is not None and not RUN_NAME.fullmatch(config.run.name):
        raise ConfigError(
            f"run.name={format_value(config.run.name)}: must be one folder's name of letters, digits and ._@- (at most "
            "200); the folder above it is run.dir"
        )
    if config.device.has_workers:
        _check_workers(config)
    if config.job == "train" and config.log.tracker != NONE:
        _check_tracker(TRACKERS[config.log.tracker])
    if config.accum.is_auto and config.accum.reduction == "sum":
        raise ConfigError(
            "accum.reduction=sum: accum.steps decides what is learned, so it can't be auto; give a number"
        )
    if config.loss.is_of_whole_batch:
        _check_whole_batch(config)
        if config.log.noise:
            raise ConfigError(
                f"log.noise=true: loss={config.loss.kind} is of the whole batch, of which a micro-batch has no "
                "gradient of its own; leave log.noise out"
            )
    if config.data.varies_in_shape and (config.device.xla is True or config.device.kind == TpuConfig.kind):
        raise ConfigError(
            "data.buckets: batches differ in length, and XLA compiles for one; "
            "leave data.buckets out, or device.xla on a CPU or GPU"
        )
    if config.data.varies_in_shape and config.model.lengths == ONE:
        raise ConfigError(
            f"data.buckets: batches differ in length, and {config.model.label} takes one in model={config.model.kind}; "
            "leave data.buckets out"
        )
    if config.task.rows is not None and config.task.rows.packing:
        _check_packed(config.data)
    if config.device.runtime == JAX and (reason := explain_missing_jax(config)):
        raise ConfigError(f"device.runtime=jax: {reason}, or use device.runtime=tensorflow")
    if config.debug.eager:
        _check_eager(config, JOBS[config.job])
    if config.debug.profile is not None and JOBS[config.job].scope != "train":
        raise ConfigError(
            f"debug.profile={config.debug.profile} and job={config.job}: updates of a training are profiled; leave "
            "debug.profile out, or choose job=train"
        )
    if isinstance(config.model.memory, int) and JOBS[config.job].probed:
        _check_memory_budget(config, config.model.memory)
    steps = 1 if config.accum.is_auto else config.accum.count
    micro_batch_size(config.batch_size, steps, config.device.known_replicas)


def _check_ramp(config: Config) -> None:
    """Raise ConfigError for a ramp of batches that can't be made of the micro-batches of batch_size."""
    before = config.batch_size
    for share, batch in sorted(config.batch_ramp.items(), key=lambda pair: _read_share(pair[0])):
        COUNT.check(f"batch_ramp.{share}", batch)
        if (begins := _read_share(share) == 0) and batch != config.batch_size:
            raise ConfigError(
                f"batch_ramp.{share}={batch} and batch_size={config.batch_size}: both say how large the first batch "
                f"is; use batch_size={batch}"
            )
        if batch % config.batch_size:
            raise ConfigError(
                f"batch_ramp.{share}={batch}: must be a multiple of batch_size={config.batch_size}, as the micro-batch "
                f"stays as it is; use {-(-batch // config.batch_size) * config.batch_size}"
            )
        if not begins and batch <= before:
            raise ConfigError(
                f"batch_ramp.{share}={batch}: the batch before is {before}, and a ramp rises; give "
                f"{before + config.batch_size} or more"
            )
        before = batch
    if config.batch_ramp and config.loss.is_of_whole_batch:
        raise ConfigError(
            f"batch_ramp: loss={config.loss.kind} is of the whole batch, so that it would become another one; leave "
            "batch_ramp out"
        )


def _read_share(share: str) -> float:
    try:
        if 0 <= float(share) < 1:
            return float(share)
    except ValueError:
        pass  # which is said below
    raise ConfigError(
        f"batch_ramp: {shorten(share)} is no share of the training; use numbers from 0 to below 1, such as "
        "batch_ramp={0.5:128}"
    )


def _constraints(record: Any, where: str = "") -> Iterator[tuple[str, Any, Constraint]]:
    """Yield dotted key, value and constraint of every field that has one, in `record` and the records in it."""
    constraints = constraints_of(type(record))
    for field in dataclasses.fields(record):
        value, key = getattr(record, field.name), f"{where}.{field.name}" if where else field.name
        if dataclasses.is_dataclass(value):
            yield from _constraints(value, key)
        for constraint in constraints[field.name]:
            yield key, value, constraint


def _check_task(config: Config) -> None:
    """Raise ConfigError for a choice that does not go with the targets of the task."""
    task, data, chosen = TASKS[config.task.kind], config.data, config.eval.metrics
    if chosen is not None and not task.chooses_metrics:
        raise ConfigError(
            f"eval.metrics={format_value(chosen)}: the model is compiled with its metrics; give them to model.compile, "
            "and leave eval.metrics out"
        )
    if task.targets not in SOURCES[data.kind].targets:
        tasks = (f"task={other.name}" for other in TASKS if other.targets in SOURCES[data.kind].targets)
        sources = (f"data={source.name}" for source in SOURCES if task.targets in source.targets)
        able = " or ".join([*tasks, *sources])
        raise ConfigError(f"task={task.name}: data={data.kind} has no {task.targets} for it; choose {able}")
    _check_targets(config)
    _check_monitor(config)
    for key, given, none, allowed in (
        ("mixup", data.mixup, 0.0, task.mixes),
        ("cutmix", data.cutmix, 0.0, task.mixes),
        ("sampling", data.sampling, "shuffled", task.balances),
    ):
        if given != none and not allowed:
            raise ConfigError(
                f"data.{key}={format_value(given)}: does not go with task={task.name}, whose targets are "
                f"{task.targets}; leave it out"
            )


def _check_packed(data: DataConfig) -> None:
    """Raise ConfigError for keys that save padding, as packed rows have none."""
    for key in ("buckets", "by_length"):
        if value := getattr(data, key, None):
            raise ConfigError(
                f"data.{key}={format_value(value)}: packed rows are full; leave it out, or give task.packing=false"
            )


def _check_targets(config: Config) -> None:
    """Raise ConfigError if the loss or a metric takes other targets than those of the task."""
    task, loss = config.task.kind, config.loss.kind
    form = TASKS[task].targets
    if form not in LOSSES[loss].targets:
        able = " or ".join(f"loss={entry.name}" for entry in LOSSES if form in entry.targets)
        raise ConfigError(
            f"loss={loss}: takes {' or '.join(LOSSES[loss].targets)}, and the targets of task={task} are {form}; "
            f"choose {able}, or leave loss out"
        )
    for metric in chosen_metrics(config.task, config.loss, config.eval.metrics):
        _check_metric(config.task, "eval.metrics", metric)


def _check_metric(task: TaskConfig, key: str, metric: MetricEntry) -> None:
    """Raise ConfigError if a metric, which `key` names, takes other targets than those of the task."""
    form = TASKS[task.kind].targets
    if form not in metric.targets:
        able = ", ".join(entry.name for entry in METRICS if form in entry.targets)
        raise ConfigError(
            f"{key}: {metric.name} takes {' or '.join(metric.targets)}, and the targets of task={task.kind} are "
            f"{form}; choose from {able}"
        )


def _check_monitor(config: Config) -> None:
    """Raise ConfigError if train.monitor is no metric, or one that is not measured."""
    monitor = config.train.monitor
    measured = [metric.name for metric in chosen_metrics(config.task, config.loss, config.eval.metrics)]
    if monitor is None or monitor == LOSS or (monitor in METRICS.names and monitor in measured):
        return
    if monitor in METRICS.names:
        _check_metric(config.task, "train.monitor", METRICS[monitor])
        raise ConfigError(
            f"train.monitor={monitor}: is not measured; add it: eval.metrics=[{','.join([*measured, monitor])}]"
        )
    raise ConfigError(f"train.monitor={monitor}: no such metric; {suggest_names(monitor, [LOSS, *METRICS.names])}")


def _check_workers(config: Config) -> None:
    shared = [job.name for job in JOBS if job.shared_by_workers]
    kind = config.device.kind
    if config.job not in shared:
        raise ConfigError(
            f"device={kind}: job={config.job} runs in one process; {' and '.join(shared)} do not; leave device={kind} "
            "out"
        )
    if config.run.on_nonfinite == "rollback":
        raise ConfigError(
            f"run.on_nonfinite=rollback: works in one process, not with device={kind}; choose skip or stop"
        )


def _check_memory_budget(config: Config, budget: int) -> None:
    least = config.model.policies[-1]
    if config.accum.is_auto:
        raise ConfigError(
            f"model.memory={budget} and accum.steps=auto: only one of the two can be found by trying; give a number of "
            f"micro-batches, accum.steps=<number>, or model.memory={least}"
        )
    if config.device.has_workers:
        raise ConfigError(
            f"model.memory={budget}: a number of MB works in one process, not with "
            f"device={config.device.kind}; use model.memory={least}"
        )


def _check_whole_batch(config: Config) -> None:
    """Raise ConfigError for what does not go with a loss over all examples of an update."""
    device = config.device
    for found, given, remedy in (
        (device.kind == TpuConfig.kind, "device=tpu", "choose device=cpu or gpu"),
        (device.has_workers, f"device={device.kind}", "use the devices of one machine, device=auto"),
        (config.data.mixup > 0.0 or config.data.cutmix > 0.0, "data.mixup and data.cutmix", "leave them out"),
    ):
        if found:
            raise ConfigError(
                f"loss={config.loss.kind} is of the whole batch and does not go with {given}; {remedy}"
                f"{config.loss.or_say}"
            )


def explain_missing_jax(config: Config) -> str | None:
    """Return the rule that keeps a job from computing with JAX, and its remedy; None if it can."""
    job, device = JOBS[config.job], config.device
    *able, last = [other.name for other in JOBS if other.on_jax]
    rules = (
        (not job.on_jax, f"job={job.name} does not compute with JAX; choose job={', '.join(able)} or {last}"),
        (not device.may_run_jax, f"computes on devices of one machine, not on device={device.kind}; use device=auto"),
        (device.xla != "auto", f"device.xla={format_value(device.xla)} is of TensorFlow's kernels; leave it out"),
        (config.debug.eager, "debug.eager=true runs TensorFlow's operations one by one; leave it out"),
        (config.debug.profile is not None, "debug.profile is of TensorFlow's operations; leave it out"),
        (config.data.varies_in_shape, "data.buckets gives batches that differ in length; leave it out"),
        (find_spec("jax") is None, "JAX is not installed; with Python 3.11 or newer: pip install 'accumtrain[jax]'"),
    )
    return next((rule for broken, rule in rules if broken), None)


def _check_eager(config: Config, job: Job) -> None:
    """Raise ConfigError for a job that measures compiled micro-steps, as its results do not hold for eager ones."""
    limit, least = config.device.memory_limit_mb, config.model.policies[-1]
    if job.measures_graphs:
        raise ConfigError(
            f"debug.eager=true and job={job.name}: this job measures compiled micro-steps; leave debug.eager out"
        )
    for measured, given, remedy in (
        (config.accum.is_auto, "accum.steps=auto", "give a number of micro-batches, accum.steps=<number>"),
        (isinstance(config.model.memory, int), f"model.memory={config.model.memory}", f"use model.memory={least}"),
        (limit is not None and config.device.may_compute_on_cpu, f"device.memory_limit_mb={limit}", "leave it out"),
    ):
        if measured and job.probed:
            raise ConfigError(
                f"debug.eager=true and {given}: probes measure compiled micro-steps, and eager ones take other "
                f"memory; {remedy}, or leave debug.eager out"
            )


def _check_tracker(tracker: TrackerEntry) -> None:
    if tracker.package is not None and find_spec(tracker.package) is None:
        raise ConfigError(
            f"log.tracker={tracker.name}: the package {tracker.package} is not installed; "
            f"pip install 'accumtrain[{tracker.extra}]'"
        )


def form_of_targets(config: Config) -> str:
    """Return the form of the targets that a run learns."""
    return TASKS[config.task.kind].targets


# ---- rules of a job ----


def check_answers(config: Config) -> None:
    """Raise ConfigError if the model of a run does not answer its task."""
    if not gives_answers(config.task, config.loss):
        task, loss = TASKS[config.task.kind], config.loss.kind
        raise ConfigError(
            f"job={config.job}: takes a model that answers task={task.name}; loss={loss} has no {task.best}"
        )


def check_export(config: Config) -> None:
    """Raise ConfigError if the run's model can't be exported in this format, or a package for it is missing."""
    check_answers(config)
    chosen, model, output = FORMATS[config.export.format], config.model, config.export.output
    if chosen.model_kinds and model.kind not in chosen.model_kinds:
        raise ConfigError(f"export.format={chosen.name}: {model.label} {chosen.others}")
    if config.data.augment == "inception" and not chosen.cuts:
        raise ConfigError(
            f"export.format={chosen.name}: data.augment=inception looks at the middle of an image, which no "
            "Keras layer cuts out of images of any size; choose export.format=savedmodel"
        )
    if missing := [name for name in chosen.packages if find_spec(name) is None]:
        raise ConfigError(
            f"export.format={chosen.name}: needs {' and '.join(missing)}; pip install 'accumtrain[{chosen.extra}]'"
        )
    if config.export.quantize != "none" and not chosen.quantizes:
        able = " or ".join(f"export.format={name}" for name in FORMATS.names if FORMATS[name].quantizes)
        raise ConfigError(
            f"export.quantize={config.export.quantize}: export.format={chosen.name} is written in float32 alone; "
            f"choose {able}, or leave export.quantize out"
        )
    if output is not None and not output.endswith(chosen.suffix):
        raise ConfigError(f"export.output={output}: must end in {chosen.suffix} with export.format={chosen.name}")
