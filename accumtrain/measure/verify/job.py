"""job=verify: prove with the user's own model, data, precision and device that saving memory keeps the gradient."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.arithmetic import Epochs, micro_batch_size, total_steps
from accumtrain.config.schema import Config
from accumtrain.console import format_things, say, table
from accumtrain.data.pipeline import make_train_batches
from accumtrain.data.source import Dataset
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError, VerificationError
from accumtrain.fields import JAX
from accumtrain.measure.verify.float64 import InFloat64, check_derivative, check_evaluation, check_precision, is_random
from accumtrain.measure.verify.imported import check_import
from accumtrain.measure.verify.on_jax import check_on_jax
from accumtrain.measure.verify.policies import check_policies, check_streams
from accumtrain.measure.verify.references import keep_half, with_shares
from accumtrain.measure.verify.result import CheckResult
from accumtrain.measure.verify.updates import check_average, check_commit, check_optimizer, check_rates
from accumtrain.measure.verify.window import (
    Pass,
    PlainGradient,
    WindowOfExamples,
    WindowResult,
    assign_weights,
    check_window,
)
from accumtrain.models.build import find_rate_factors
from accumtrain.models.config import MODELS
from accumtrain.models.keras.config import KerasHubConfig
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.optim.config import SgdConfig
from accumtrain.optim.optimizer import Optimizer
from accumtrain.registry import module_of
from accumtrain.runs.folder import result_file
from accumtrain.tasks.objective import Objective, open_objective
from accumtrain.train.build import build_optimizer, model_for
from accumtrain.train.tell.remedies import explain_errors
from accumtrain.train.weights import begin_with_weights, window_with_weights

MOST_STEPS, MOST_EXAMPLES = 16, 32  # of a window on one replica: few images are enough to see a difference
VERDICTS = {True: "pass", False: "FAIL", None: "no bound"}


def verify_run(config: Config) -> dict[str, Any]:
    """Run all checks at the initial weights, or model.weights, and return verify.json. Nothing is trained.

    Raises:
        VerificationError: a check missed its bound.
    """
    _check_comparable(config)
    devices = resolve_devices(config.device)
    objective = open_objective(config)
    data = objective.data
    with explain_errors(config, data, devices.replicas):
        examples = _examples(config, data, devices)
        say(
            f"{config.model.label}, {config.precision}, {devices.description}: a window of {examples.steps} x "
            f"{format_things(examples.batch, 'example')} of {config.data.label}: {data.facts}"
        )
        if config.device.runtime == JAX:
            results = _run_checks_on_jax(config, objective, examples)
        else:
            results = _run_checks(config, objective, devices, examples)
    summary = {
        "passed": all(result.passed is not False for result in results),
        "model": config.model.label,
        "precision": config.precision,
        "device": devices.description,
        "accum_steps": examples.steps,
        "micro_batch_size": examples.batch // devices.replicas,
        "replicas": devices.replicas,
        "checks": [
            {
                "check": result.name,
                "bound": result.bound,
                "measured": result.measured,
                "passed": result.passed,
                "note": result.note,
            }
            for result in results
        ],
    }
    _show(config, results)
    path = result_file(config)
    failed = [result.name for result in results if result.passed is False]
    if failed:
        raise VerificationError(
            f"{len(failed)} of {len(results)} checks failed: {'; '.join(failed)}. "
            f"The table above and {path} say by how much: "
            "don't rely on this configuration here; if no note above names a cause and its remedy, report it",
            summary,
        )
    say(f"all bounds hold; details in {path}")
    return summary


def _check_comparable(config: Config) -> None:
    """Raise ConfigError for a configuration whose gradients can't be compared."""
    if config.precision == "float16":
        raise ConfigError(
            "precision=float16: job=verify compares gradients that no loss scale has multiplied; "
            "verify with precision=float32 or bfloat16"
        )
    if config.device.xla is True:
        raise ConfigError(
            "device.xla=true: job=verify compares bits, and nothing is compared under XLA, which sums in an order that "
            "depends on what it fuses; leave device.xla out"
        )
    if config.device.tensor_float_32:
        raise ConfigError(
            "device.tensor_float_32=true: job=verify compares with float64 by bounds for float32, and rounded products "
            "miss them; leave device.tensor_float_32 out"
        )


def _run_checks(
    config: Config, objective: Objective, devices: Devices, examples: WindowOfExamples
) -> list[CheckResult]:
    bitwise = config.model.same_bits_in_every_graph
    own = config.with_accum_steps(examples.steps)
    total = total_steps(config, Epochs(config, objective.stored.train.size))
    window, _ = window_with_weights(own, objective, total, devices.strategy)
    imported = _check_import_if_any(config, window.model, examples)
    names, decayed = [variable.name.split(":")[0] for variable in window.variables_], window.model.decayed
    factors = find_rate_factors(config.optim.rates, window.model.trainable_paths, config.optim.layer_decay)
    with devices.strategy.scope():
        step = Step(window)
    accumulated = check_window(window, step, devices.runtime, examples, config.precision, bitwise)
    told = objective.told_per_example if config.has_half_lives else 1.0
    told_of_update, average = told * config.batch_size, config.ema
    optim = with_shares(config.optim, told_of_update)
    decay = average.decay if average.half_life is None else keep_half(average.half_life, told_of_update)
    later = [
        *check_rates(window, step, optim, config.schedule, total),
        *check_average(window, step, devices.strategy, examples, decay),
    ]
    first, rows = accumulated.first, examples.batch // devices.replicas
    alone = devices.replicas == 1 or not window.whole_batch
    del window, step  # frees its memory for the next one
    if not alone:  # the loss has seen the examples of the other replicas, and policies are checked on one
        first = _plain_pass(own, objective, WindowOfExamples(examples.as_batch(rows), 1, rows))
    summed = examples.steps if config.accum.reduction == "sum" else 1  # mean gradients of micro-batches, in an update
    return [
        *imported,
        *accumulated.results,
        *check_commit(
            optim,
            accumulated.weights,
            accumulated.after,
            [summed * gradient for gradient in accumulated.gradients],
            accumulated.scalars,
            decayed,
            factors,
        ),
        *later,
        *_check_in_float64_if_possible(own, objective, devices, examples, accumulated),
        *check_policies(
            partial(_window_with, own, objective),
            config.model.policies,
            examples.as_batch(rows),
            first.gradients,
            repeatable=accumulated.repeatable,
            bitwise=bitwise,
            precision=config.precision,
            snap_bits=config.model.stream_bits,
        ),
        check_optimizer(
            partial(_build_optimizer, config, told),
            names,
            accumulated.weights,
            accumulated.gradients,
            decayed,
            optim,
        ),
    ]


def _build_optimizer(config: Config, told: float) -> Optimizer:
    """Return a new optimizer of the run, which follows its batch."""
    optimizer = build_optimizer(config.optim, told)
    optimizer.follow(0, config.batch_size)
    return optimizer


def _check_import_if_any(config: Config, model: Model | None, examples: WindowOfExamples) -> list[CheckResult]:
    """Check the weights of a published model, if the run begins with them."""
    from accumtrain.models.published.build import PublishedModel  # here, as most runs begin with none

    keys = config.model
    if keys.weights is not None:
        return []
    if isinstance(keys, KerasHubConfig):
        note = "not compared: they are as KerasHub converts them, of which there is no second implementation here"
        return [CheckResult("weights of the preset", 0.0, None, note)]
    if not isinstance(keys, PretrainedConfig):
        return []
    assert isinstance(model, PublishedModel)
    return check_import(keys, model, examples.arrays["inputs"], config.precision)


def _run_checks_on_jax(config: Config, objective: Objective, examples: WindowOfExamples) -> list[CheckResult]:
    model = None
    if isinstance(config.model, PretrainedConfig):  # by TensorFlow, which the gradients are compared with
        model = model_for(config, objective.stored, draws=False)
        begin_with_weights(config, model)
    imported = _check_import_if_any(config, model, examples)
    del model
    return imported + check_on_jax(
        partial(_window_with, config.with_accum_steps(examples.steps), objective),
        lambda: resolve_devices(config.device).runtime,
        config.model.policies,
        examples,
        config.precision,
    )


def _check_in_float64_if_possible(
    config: Config, objective: Objective, devices: Devices, examples: WindowOfExamples, accumulated: WindowResult
) -> list[CheckResult]:
    """Run the checks in float64. A model of the user's own that does not compute in it is left out."""
    try:
        return _check_in_float64(config, objective, devices, examples, accumulated)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        if module_of(MODELS[config.model.kind].build).startswith("accumtrain.models."):
            raise
        reason = str(error).strip().splitlines()[-1]
        return [CheckResult("checks in float64", 0.0, None, f"left out, as the model does not compute in it: {reason}")]


def _check_in_float64(
    config: Config, objective: Objective, devices: Devices, examples: WindowOfExamples, accumulated: WindowResult
) -> list[CheckResult]:
    """Check the same window in float64, on one device, with the micro-batches of all replicas one by one."""
    model = config.model.of_float_streams
    alone = WindowOfExamples(examples.arrays, examples.steps * devices.replicas, examples.batch // devices.replicas)
    smooth = replace(config.with_accum_steps(alone.steps), precision="float64", model=model)
    window = _window_with(smooth, objective, model.policy)
    others = {variable.dtype.name for variable in window.variables_} - {"float64"}
    if others:
        raise TypeError(f"its variables are {', '.join(sorted(others))}")
    assign_weights(window, accumulated.weights)
    results, exact = check_derivative(window, alone, objective.loss_config)
    assign_weights(window, accumulated.weights)
    random = is_random(window, alone)
    found = InFloat64(accumulated.gradients, accumulated.statistics)
    results += check_evaluation(window, alone, random)
    results += check_precision(found, exact, window.model.trainable_paths, config.precision, random)
    if config.model.stream_bits:
        del window  # frees its memory for the next one
        of_floats = _window_with(replace(smooth, precision=config.precision), objective, model.policy)
        assign_weights(of_floats, accumulated.weights)
        results.append(check_streams(found.gradient, of_floats, alone, exact, config.model.stream_bits))
    return results


def _window_with(config: Config, objective: Objective, policy: str) -> Window:
    """Return a window on one device, with another memory policy and an optimizer without state."""
    model = config.model.with_policy(policy)
    optim = SgdConfig(lr=1.0, weight_decay=0.0, momentum=0.0)
    config = replace(config, model=model, optim=optim)
    window, _ = window_with_weights(config, objective, 1, tf.distribute.get_strategy())
    return window


def _plain_pass(config: Config, objective: Objective, examples: WindowOfExamples) -> Pass:
    """Return plain back-propagation of one batch on one device."""
    window = _window_with(config, objective, config.model.policy)
    strategy = tf.distribute.get_strategy()
    plain = PlainGradient(window.model, window.loss_function, strategy, window.seed, window.micro_steps)
    return next(plain(examples, 1))


def _examples(config: Config, data: Dataset, devices: Devices) -> WindowOfExamples:
    """Return the first examples of the training stream, as accum.steps micro-steps, but 2 to MOST_STEPS."""
    configured = 1 if config.accum.is_auto else config.accum.count
    micro_batch = micro_batch_size(config.batch_size, configured, devices.replicas)
    steps = min(max(configured, 2), MOST_STEPS)
    batch = min(micro_batch, MOST_EXAMPLES // steps) * devices.replicas
    dataset = make_train_batches(data, batch=steps * batch, first=0, seed=config.run.seed)
    arrays = tf.nest.map_structure(np.asarray, next(iter(dataset)))
    return WindowOfExamples(arrays, steps, batch)


def _show(config: Config, results: list[CheckResult]) -> None:
    rows = []
    for result in results:
        bound = "none" if result.bound is None else f"{result.bound:.3g}"
        rows.append((result.name, bound, f"{result.measured:.3g}", VERDICTS[result.passed]))
    table(f"exactness of {config.model.label}", ("check", "bound", "measured", "result"), rows)
    for result in results:
        if result.note:
            say(f"{result.name}: {result.note}")
