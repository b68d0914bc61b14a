"""job=plan device=tpu: the memory of a run on a TPU that this machine does not have, by the TPU's own compiler.

One child lowers the update with TensorFlow and hands it over to JAX. Another child, in an environment with the TPU's
compiler and without TensorFlow, compiles it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accumtrain.config.arithmetic import Epochs, divisors, micro_batch_size, total_steps
from accumtrain.config.jobs import cell
from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, table
from accumtrain.devices.config import CpuConfig, hbm_bytes
from accumtrain.errors import ConfigError, OutOfMemoryError
from accumtrain.fields import JAX, TENSORFLOW
from accumtrain.measure.plan import describe_plan, plan_result
from accumtrain.measure.search import doubled
from accumtrain.process import child, environment
from accumtrain.process.jax_packages import import_jax
from accumtrain.process.program import child_command
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.runs.folder import result_file
from accumtrain.train.tell.remedies import with_each_policy

COMPILER = "ACCUMTRAIN_TPU_COMPILER"  # the Python of the compiler's environment
SCRIPT = Path(__file__).with_name("compiler.py")
TASK = "accumtrain.measure.tpu.plan:lower_request"
PROGRAM = "update.jax"
COLUMNS = ("memory", "accum.steps", "micro-batch", "temporary", "state and batch", "TFLOP/update", "fits")


@dataclass(frozen=True)
class CompiledTrial:
    """The compiler's report of one update on one device. The sizes are None if it refused the program.

    Attributes:
        memory: the memory policy.
        fits: the program with its arguments fits into the device's memory.
        temporary_bytes: what the program needs besides its arguments: activations and gradients.
        argument_bytes: weights, buffers, optimizer state and one micro-batch.
        output_bytes: results that do not reuse the memory of an argument.
        flops: floating-point operations of an update, replays included (see count_flops).
        reason: a text of why the program does not fit, if so.
    """

    memory: str
    micro_batch: int
    accum_steps: int
    fits: bool
    flops: int
    temporary_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    reason: str | None = None


def plan_by_compiler(config: Config) -> dict[str, Any]:
    """Compile one update of one replica under each memory policy, and print a table.

    Returns:
        The content of plan.json: batch_size, tpu_topology, hbm_bytes (of a device), trials (fields of CompiledTrial).

    Raises:
        ConfigError: there is no compiler or no JAX, or the compiler does not know the topology, or not the model.
        AccumtrainError: the update can't be lowered or compiled, for another reason than memory.
    """
    python, topology = _find_compiler(), config.device.tpu_topology
    hbm = hbm_bytes(topology)
    trials = [trial for variant in with_each_policy(config) for trial in _descend(variant, python)]
    where = f"{describe_plan(config)} on one device of {topology}, {format_bytes(hbm)}"
    table(where, COLUMNS, [format_compiled_row(trial) for trial in trials])
    say(f"the same in {result_file(config)}")
    return plan_result(config, {"tpu_topology": topology, "hbm_bytes": hbm}, trials)


def _descend(config: Config, python: str) -> Iterator[CompiledTrial]:
    """Compile with the given accum.steps. For `auto`, compile with increasing numbers until the program fits."""
    given = [] if config.accum.is_auto else [config.accum.count]
    for steps in given or doubled(divisors(config.batch_size)):
        trial = _compile(config.with_accum_steps(steps), python)
        yield trial
        if trial.fits:
            return


def format_compiled_row(trial: CompiledTrial) -> tuple[str, ...]:
    return (
        trial.memory,
        str(trial.accum_steps),
        str(trial.micro_batch),
        cell(trial.temporary_bytes, format_bytes),
        cell(trial.argument_bytes, format_bytes),
        f"{trial.flops / 1e12:.3g}",
        "yes" if trial.fits else f"no ({trial.reason})",
    )


def _find_compiler() -> str:
    python = os.environ.get(COMPILER)
    if not python:
        raise ConfigError(
            "job=plan device=tpu: the TPU's compiler has an environment of its own, and none is named here; run "
            f'`make tpu-compile ARGS="..."`, or set {COMPILER} to the Python of one with jax and libtpu'
        )
    if shutil.which(python) is None:
        raise ConfigError(
            f"{COMPILER}={python}: no such program; `make tpu-compile` makes the environment and names it"
        )
    if find_spec("jax") is None:
        raise ConfigError(
            "job=plan device=tpu: JAX hands the update over to the TPU's compiler, and is not installed here; "
            "pip install 'accumtrain[jax]', with Python 3.11 or newer"
        )
    return python


def _compile(config: Config, python: str) -> CompiledTrial:
    micro_batch, topology = micro_batch_size(config.batch_size, config.accum.count, 1), config.device.tpu_topology
    say(f"model.memory={config.model.memory}, micro-batch {micro_batch}: lowering, then compiling for {topology}")
    with temporary_folder("tpu") as folder:
        request = {child.TASK: TASK, "config": to_mapping(config)}
        lowered = child.run_child(child_command(), folder, request, "lowering")
        child.raise_child_error(lowered, "lowering")
        compiled = child.run_child([python, str(SCRIPT)], folder, {"topology": topology}, "compiling")
    trial = CompiledTrial(
        config.model.policy, micro_batch, config.accum.count, fits=False, flops=lowered.answer["flops"]
    )
    if compiled.code == OutOfMemoryError.exit_code:
        return replace(trial, reason=compiled.answer["message"])
    child.raise_child_error(compiled, "the TPU's compiler")
    found = compiled.answer
    output = found["output_bytes"] - found["aliased_bytes"]
    needed = found["temporary_bytes"] + found["argument_bytes"] + output
    fits = needed <= hbm_bytes(topology)
    return replace(
        trial,
        fits=fits,
        temporary_bytes=found["temporary_bytes"],
        argument_bytes=found["argument_bytes"],
        output_bytes=output,
        reason=None if fits else f"needs {format_bytes(needed)}",
    )


# ---- in the child ----


def lower_request(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Lower the requested update and write the program into the folder."""
    config = from_mapping(request["config"])
    keys = {**asdict(config.device), "kind": CpuConfig.kind, "tpu": None, "runtime": TENSORFLOW}
    here = CpuConfig(**keys)  # for lowering only: nothing is computed
    import_jax()
    environment.prepare(here)
    import jax

    from accumtrain.data.pipeline import make_train_batches
    from accumtrain.devices.resolve import resolve_devices
    from accumtrain.measure.tpu.lowering import lower_update
    from accumtrain.pjrt.hand_over import hand_over
    from accumtrain.tasks.objective import open_objective
    from accumtrain.train.build import build_window

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)  # the count of updates is an int64
    strategy = resolve_devices(here).strategy  # first, as the data makes tensors
    objective = open_objective(config).longest
    total = total_steps(config, Epochs(config, objective.stored.train.size))
    window = build_window(config, objective, total, strategy)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, 1)
    batches = make_train_batches(objective.data, batch=micro_batch, first=0, seed=config.run.seed)
    program, flops = lower_update(
        window, {name: batches.element_spec[name] for name in ("inputs", "targets", "weight")}
    )
    handed = hand_over(program.hlo, rounds=config.device.runtime != JAX)  # TensorFlow's TPUs round float32's products
    (folder / PROGRAM).write_bytes(handed.serialize())
    return {"flops": flops}
