"""A probe in a process of its own: one that dies of memory takes nothing with it, and its memory is its own.

The parent imports no TensorFlow; the child runs `main`, and a folder carries request and answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from accumtrain import environment
from accumtrain.config import Config, from_mapping, to_mapping
from accumtrain.console import say
from accumtrain.errors import AccumtrainError, OutOfMemoryError

# What a probe may use of a limit: over many updates the allocator's memory is less well packed than over two.
SHARE = 0.97
# The child finds the modules where this process has found them.
PROGRAM = "import sys; sys.path[:] = {path!r}; from accumtrain.jobs import probe; sys.exit(probe.main(sys.argv[1]))"
REQUEST, ANSWER = "request.json", "answer.json"
# How a process ends that is denied memory: by the system, by C++, or by a kernel of TensorFlow that does not check.
OF_MEMORY = (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)


@dataclass(frozen=True)
class Trial:
    """What one probe found. `accum_steps` and all after it are None where it ran out of memory.

    Attributes:
        memory: the memory policy.
        micro_batch: examples per micro-step and replica.
        fits: it ran, within the limit and the memory that was free.
        static_bytes: tensors that stay: weights, buffers, optimizer state, resident data.
        peak_bytes: tensors at the worst moment, the static ones included.
        rss_bytes: peak resident memory of the process.
        examples_per_second: over whole updates of accum_steps micro-steps.
        seconds_to_first_update: from the start of the process.
    """

    memory: str
    micro_batch: int
    fits: bool
    accum_steps: int | None = None
    replicas: int | None = None
    static_bytes: int | None = None
    peak_bytes: int | None = None
    rss_bytes: int | None = None
    examples_per_second: float | None = None
    seconds_to_first_update: float | None = None


def probe(config: Config, micro_batch: int) -> Trial:
    """Tries `config` at a micro-batch, in a child process, within device.memory_limit_mb and the free memory.

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
        RuntimeError: the child ended by a bug; its last words are in the message.
    """
    free = free_bytes()
    choices = f"model.memory={config.model.memory}, optim={config.optim.kind}, {config.precision}"
    say(f"probing micro-batch {micro_batch}: {choices}")
    with tempfile.TemporaryDirectory(prefix="accumtrain-probe-") as name:
        directory = Path(name)
        settled = replace(config, accum=replace(config.accum, steps=1))  # micro_batch decides, not `auto`
        request = {"config": to_mapping(settled), "micro_batch": micro_batch, "free_mb": free // 2**20}
        (directory / REQUEST).write_text(json.dumps(request))
        command = [sys.executable, "-c", PROGRAM.format(path=sys.path), name]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        answer = directory / ANSWER
        found = json.loads(answer.read_text()) if answer.exists() else {}
    out_of_memory = Trial(config.model.memory, micro_batch, fits=False)
    if child.returncode == OutOfMemoryError.exit_code or child.returncode in OF_MEMORY:
        return out_of_memory
    if child.returncode != 0 and "message" in found:
        raise _error(child.returncode)(found["message"])
    if child.returncode != 0:
        raise RuntimeError(f"a probe ended with code {child.returncode}:\n{child.stderr[-4000:]}")
    return replace(out_of_memory, fits=found["rss_bytes"] <= free, **found)


def free_bytes() -> int:
    """Memory a run started now could have: what the system has to give, and what this process would leave to it."""
    return psutil.virtual_memory().available + psutil.Process().memory_info().rss


def _error(exit_code: int) -> type[AccumtrainError]:
    return next(kind for kind in AccumtrainError.__subclasses__() if kind.exit_code == exit_code)


# --- in the child -----------------------------------------------------------------------------------------------


def main(name: str) -> int:
    """Answers the request in the folder `name`. Returns the exit code."""
    directory = Path(name)
    request = json.loads((directory / REQUEST).read_text())
    config = from_mapping(request["config"])
    limit = config.device.memory_limit_mb
    if limit is not None:
        config = replace(config, device=replace(config.device, memory_limit_mb=max(1, int(limit * SHARE))))
    else:  # without a limit of its own the machine's: the probe fails before the machine does
        os.environ[environment.CPU_LIMIT] = str(request["free_mb"])
    environment.prepare(config.device)
    try:
        answer, code = _measured(config, request["micro_batch"], directory), 0
    except AccumtrainError as error:
        answer, code = {"message": str(error)}, error.exit_code
    (directory / ANSWER).write_text(json.dumps(answer))
    return code


def _measured(config: Config, micro_batch: int, directory: Path) -> dict[str, Any]:
    import tensorflow as tf

    from accumtrain.data.build import open_data
    from accumtrain.engine.probe import measure
    from accumtrain.jobs.failures import explained

    try:
        data = open_data(config.data, config.run.seed)
        with explained(config, data):
            return measure(config, data, micro_batch, directory / "checkpoints")
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(str(error)) from error
