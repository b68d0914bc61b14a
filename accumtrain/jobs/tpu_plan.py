"""job=plan device=tpu: what a run would take on a TPU that is not here, by the TPU's own compiler.

TensorFlow lowers the update in one child; the compiler, in an environment without TensorFlow, is another.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import accumtrain
from accumtrain import environment
from accumtrain.config import Config, from_mapping, micro_batch_size, to_mapping, total_steps
from accumtrain.config.tpu import hbm_bytes
from accumtrain.console import format_bytes, say, table
from accumtrain.errors import ConfigError, OutOfMemoryError
from accumtrain.jobs import child
from accumtrain.jobs.advice import policies
from accumtrain.jobs.auto import ladder
from accumtrain.jobs.plan_file import title, write_plan

COMPILER = "ACCUMTRAIN_TPU_COMPILER"  # the Python of the compiler's environment
SCRIPT = Path(accumtrain.__file__).with_name("tpu_compiler.py")
PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from accumtrain.jobs import tpu_plan; sys.exit(tpu_plan.main(sys.argv[1]))"
)
MODULE = "step.mlir"
COLUMNS = ("memory", "accum.steps", "micro-batch", "temporary", "state and batch", "TFLOP/update", "fits")


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of one update on one device; None where it refused the program.

    Attributes:
        memory: the memory policy.
        fits: the program with its arguments is within the device's memory.
        temporary_bytes: what the program needs beside its arguments: activations, gradients on their way.
        argument_bytes: weights, buffers, optimizer state and one micro-batch.
        output_bytes: results that have no place among the arguments.
        flops: convolutions and matrix products of an update, replays included.
        reason: the compiler's own words where it refused.
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


def run(config: Config) -> dict[str, Any]:
    """Compiles one update of one replica under each memory policy, prints a table, and writes plan.json.

    Returns:
        The content of plan.json: batch_size, tpu_topology, hbm_bytes (of a device), trials (fields of Compiled).

    Raises:
        ConfigError: there is no compiler, or it does not know the topology.
        AccumtrainError: the run would fail for another reason than memory.
    """
    python, topology = _compiler(), config.device.tpu_topology
    hbm = hbm_bytes(topology)
    trials = [trial for variant in policies(config) for trial in _descend(variant, python)]
    plan, directory = write_plan(config, {"tpu_topology": topology, "hbm_bytes": hbm}, trials)
    where = f"{title(config)} on one device of {topology}, {format_bytes(hbm)}"
    table(where, COLUMNS, [row(trial) for trial in trials])
    say(f"the same in {directory / 'plan.json'}")
    return plan


def _descend(config: Config, python: str) -> Iterator[Compiled]:
    """Compiles with accum.steps as given; if that is `auto`, with more and more, until it fits."""
    given = [] if config.accum.steps == "auto" else [config.accum.count]
    for steps in given or ladder(config.batch_size):
        trial = _trial(replace(config, accum=replace(config.accum, steps=steps)), python)
        yield trial
        if trial.fits:
            return


def row(trial: Compiled) -> tuple[str, ...]:
    """A trial's line in a table of COLUMNS."""
    return (
        trial.memory,
        str(trial.accum_steps),
        str(trial.micro_batch),
        "-" if trial.temporary_bytes is None else format_bytes(trial.temporary_bytes),
        "-" if trial.argument_bytes is None else format_bytes(trial.argument_bytes),
        f"{trial.flops / 1e12:.3g}",
        "yes" if trial.fits else f"no ({trial.reason})",
    )


def _compiler() -> str:
    python = os.environ.get(COMPILER)
    if not python:
        raise ConfigError(
            "job=plan device=tpu: the TPU's compiler has an environment of its own, and none is named here; run "
            f'`make tpu-compile ARGS="..."`, or set {COMPILER} to the Python of one with jax and libtpu'
        )
    if shutil.which(python) is None:
        raise ConfigError(f"{COMPILER}={python}: no program; `make tpu-compile` makes the environment and names it")
    return python


def _trial(config: Config, python: str) -> Compiled:
    micro_batch, topology = micro_batch_size(config.batch_size, config.accum.count, 1), config.device.tpu_topology
    say(f"model.memory={config.model.memory}, micro-batch {micro_batch}: lowering, then compiling for {topology}")
    lowering = [sys.executable, "-c", PROGRAM.format(path=sys.path)]
    with tempfile.TemporaryDirectory(prefix="accumtrain-tpu-") as name:
        lowered = child.ask(lowering, Path(name), {"config": to_mapping(config)}, "lowering")
        child.check(lowered, "lowering")
        outcome = child.ask([python, str(SCRIPT)], Path(name), {"topology": topology}, "compiling")
    trial = Compiled(config.model.memory, micro_batch, config.accum.count, fits=False, flops=lowered.answer["flops"])
    if outcome.code == OutOfMemoryError.exit_code:
        return replace(trial, reason=outcome.answer["message"])
    child.check(outcome, "the TPU's compiler")
    found = outcome.answer
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


# --- in the child -----------------------------------------------------------------------------------------------


def main(name: str) -> int:
    """Lowers the update that is asked for in the folder `name`. Returns the exit code."""
    return child.reply(Path(name), lambda request: _lower(from_mapping(request["config"]), Path(name)))


def _lower(config: Config, directory: Path) -> dict[str, Any]:
    here = replace(config.device, kind="cpu", tpu=None, memory_limit_mb=None)  # it computes nothing
    environment.prepare(here)
    from accumtrain.data.build import open_data
    from accumtrain.devices import resolve
    from accumtrain.engine.build import build_window
    from accumtrain.engine.lowering import lower

    data = open_data(config.data, config.run.seed)
    window = build_window(config, data, total_steps(config, data.train.size), resolve(here).strategy)
    text, flops = lower(window, data.image_shape, micro_batch_size(config.batch_size, config.accum.count, 1))
    (directory / MODULE).write_text(text)
    return {"flops": flops}
