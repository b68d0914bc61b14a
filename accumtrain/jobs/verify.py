"""job=verify: proves on the user's own model, data, precision and device that nothing is lost for the memory saved."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.config import MEMORIES, Config, KerasModelConfig, RevNetConfig, SgdConfig, micro_batch_size
from accumtrain.config.rules import check
from accumtrain.console import say, table
from accumtrain.data.build import open_data
from accumtrain.data.pipeline import train_batches
from accumtrain.data.source import Data
from accumtrain.devices import Devices, resolve
from accumtrain.engine.build import build_window
from accumtrain.engine.verify.accumulation import WindowOfExamples, check_window
from accumtrain.engine.verify.memory import check_policies
from accumtrain.engine.verify.optimizer import check_optimizer
from accumtrain.engine.verify.result import Result
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError, VerificationError
from accumtrain.jobs.failures import explained
from accumtrain.optim.build import build_optimizer
from accumtrain.runs import Run, write_json

MOST_STEPS, MOST_EXAMPLES = 16, 32  # of a window on one replica: exactness shows on few images
VERDICTS = {True: "pass", False: "FAIL", None: "no bound"}


def run(config: Config) -> dict[str, Any]:
    """Runs all checks at the initial weights, prints their table and writes verify.json. Trains nothing.

    Raises:
        VerificationError: a check missed its bound.
    """
    if config.precision == "float16":
        raise ConfigError(
            "precision=float16: job=verify compares gradients that no loss scale has multiplied; "
            "verify with precision=float32 or bfloat16"
        )
    if config.device.xla is True:
        raise ConfigError(
            "device.xla=true: job=verify compares the bits of TensorFlow's own kernels, and XLA sums in an order that "
            "depends on what it fuses; leave device.xla out"
        )
    devices = resolve(config.device)
    data = open_data(config.data, config.run.seed)
    path = Run(config).path / "verify.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the run's folder {path.parent} can't be used: {error.strerror}; choose another run.dir or run.name"
        ) from error
    with explained(config, data, devices.replicas):
        examples = _examples(config, data, devices)
        say(
            f"{config.model.label}, {config.precision}, {devices.description}: a window of {examples.steps} x "
            f"{examples.batch} images of {config.data.label}, {' x '.join(map(str, data.image_shape))}"
        )
        results = _checks(config, data, devices, examples)
    summary = {
        "passed": all(result.passed is not False for result in results),
        "model": config.model.label,
        "precision": config.precision,
        "device": devices.description,
        "accum_steps": examples.steps,
        "micro_batch_size": examples.batch // devices.replicas,
        "replicas": devices.replicas,
        "checks": [_record(result) for result in results],
    }
    write_json(path, summary)
    _show(config, results)
    failed = [result.name for result in results if result.passed is False]
    if failed:
        raise VerificationError(
            f"{len(failed)} of {len(results)} checks failed: {'; '.join(failed)}. "
            f"The table above and {path} say by how "
            "much: don't rely on this configuration here; if no note above names a cause and its remedy, report it"
        )
    say(f"all bounds hold; details in {path}")
    return summary


def _checks(config: Config, data: Data, devices: Devices, examples: WindowOfExamples) -> list[Result]:
    bitwise = not isinstance(config.model, KerasModelConfig)
    own = replace(config, accum=replace(config.accum, steps=examples.steps))
    window = build_window(own, data, total_steps=1, strategy=devices.strategy)
    names, decayed = [variable.name.split(":")[0] for variable in window.variables_], window.model.decayed
    accumulated = check_window(window, devices.strategy, examples, config.precision, bitwise)
    del window  # its place is needed for the next one
    return [
        *accumulated.results,
        *check_policies(
            partial(_window_with, own, data),
            _policies(config),
            examples.first(examples.batch // devices.replicas),
            accumulated.first.gradients,
            repeatable=accumulated.repeatable,
            bitwise=bitwise,
            precision=config.precision,
            snap_bits=config.model.snap_bits if isinstance(config.model, RevNetConfig) else None,
        ),
        check_optimizer(
            partial(build_optimizer, config.optim), names, accumulated.weights, accumulated.gradients, decayed
        ),
    ]


def _window_with(config: Config, data: Data, policy: str) -> Window:
    """A window on one device, its model under another memory policy; its optimizer keeps no state."""
    model = replace(config.model, memory=policy)
    optim = SgdConfig("sgd", 1.0, 0.0, 0.0, momentum=0.0, nesterov=False)
    return build_window(replace(config, model=model, optim=optim), data, 1, tf.distribute.get_strategy())


def _policies(config: Config) -> list[str]:
    """Those that the rules allow for this model."""
    allowed = []
    for policy in MEMORIES:
        try:
            check(replace(config, model=replace(config.model, memory=policy)))
        except ConfigError:
            continue
        allowed.append(policy)
    return allowed


def _examples(config: Config, data: Data, devices: Devices) -> WindowOfExamples:
    """A window from the start of the training stream, with accum.steps as configured where it is 2 to MOST_STEPS."""
    configured = 1 if config.accum.steps == "auto" else int(config.accum.steps)
    micro_batch = micro_batch_size(config.batch_size, configured, devices.replicas)
    steps = min(max(configured, 2), MOST_STEPS)
    batch = min(micro_batch, MOST_EXAMPLES // steps) * devices.replicas
    dataset = train_batches(data, batch=steps * batch, first=0, seed=config.run.seed)
    arrays = {name: np.asarray(value) for name, value in next(iter(dataset)).items()}
    return WindowOfExamples(arrays, steps, batch)


def _record(result: Result) -> dict[str, Any]:
    return {
        "check": result.name,
        "bound": result.bound,
        "measured": result.measured,
        "passed": result.passed,
        "note": result.note,
    }


def _show(config: Config, results: list[Result]) -> None:
    rows = [
        (result.name, _number(result.bound), _number(result.measured), VERDICTS[result.passed]) for result in results
    ]
    table(f"exactness of {config.model.label}", ("check", "bound", "measured", "result"), rows)
    for result in results:
        if result.note:
            say(f"{result.name}: {result.note}")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
