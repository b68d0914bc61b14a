"""A probe in a process of its own: one that dies of memory takes nothing with it, and its memory is its own.

The child runs `main`.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from accumtrain import environment
from accumtrain.config import Config, from_mapping, to_mapping
from accumtrain.console import say
from accumtrain.errors import OutOfMemoryError
from accumtrain.jobs import child
from accumtrain.jobs.free_memory import free_bytes

# What a probe may use of a limit: over many updates the allocator's memory is less well packed than over two.
SHARE = 0.95
# The child finds the modules where this process has found them.
PROGRAM = "import sys; sys.path[:] = {path!r}; from accumtrain.jobs import probe; sys.exit(probe.main(sys.argv[1]))"
# How a process ends that is denied memory: by the system, by C++, or by a kernel of TensorFlow that does not check.
OF_MEMORY = (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)
STOPPED = (-signal.SIGINT, -signal.SIGTERM)  # a signal to a whole group of processes


@dataclass(frozen=True)
class Trial:
    """What one probe found. `accum_steps` and all after it are None where it ran out of memory, or was not made.

    Attributes:
        memory: the memory policy.
        micro_batch: examples per micro-step and replica.
        fits: it ran, within the limit and the memory that was free.
        static_bytes: tensors that stay: weights, buffers, optimizer state, resident data.
        peak_bytes: tensors at the worst moment, the static ones included.
        rss_bytes: peak resident memory of the process.
        examples_per_second: over whole updates of accum_steps micro-steps.
        seconds_to_first_update: from the start of the process.
        expected_bytes: no probe was made, for it would take so much: the peak, or without a limit the resident memory.
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
    expected_bytes: int | None = None


def probe(config: Config, micro_batch: int, note: str = "") -> Trial:
    """Tries `config` at a micro-batch, in a child process, within device.memory_limit_mb and the free memory.

    Args:
        note: what to say beside the choices that are tried.

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
        KeyboardInterrupt: the child was told to stop.
        RuntimeError: the child ended by a bug; its last words are in the message.
    """
    free = int(SHARE * free_bytes())
    choices = f"model.memory={config.model.memory}, optim={config.optim.kind}, {config.precision}"
    say(f"probing micro-batch {micro_batch}: {choices}{note}")
    settled = replace(config, accum=replace(config.accum, steps=1))  # micro_batch decides, not `auto`
    request = {"config": to_mapping(settled), "micro_batch": micro_batch, "free_mb": free // 2**20}
    command = [sys.executable, "-c", PROGRAM.format(path=sys.path)]
    with tempfile.TemporaryDirectory(prefix="accumtrain-probe-") as name:
        outcome = child.ask(command, Path(name), request, "importing TensorFlow")
    out_of_memory = Trial(config.model.memory, micro_batch, fits=False)
    if outcome.code == OutOfMemoryError.exit_code or outcome.code in OF_MEMORY:
        return out_of_memory
    if outcome.code in STOPPED:
        raise KeyboardInterrupt
    child.check(outcome, "a probe")
    return replace(out_of_memory, fits=outcome.answer["rss_bytes"] <= free, **outcome.answer)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within, SIGTERM ends what is under way as Ctrl-C does, so that it is tidied up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


# --- in the child -----------------------------------------------------------------------------------------------


def main(name: str) -> int:
    """Answers the request in the folder `name`. Returns the exit code."""
    return child.reply(Path(name), lambda request: _answer(request, Path(name)))


def _answer(request: dict[str, Any], directory: Path) -> dict[str, Any]:
    config = from_mapping(request["config"])
    limit = config.device.memory_limit_mb
    if limit is not None:
        config = replace(config, device=replace(config.device, memory_limit_mb=max(1, int(limit * SHARE))))
    else:  # without a limit of its own the machine's: the probe fails before the machine does
        os.environ[environment.CPU_LIMIT] = str(request["free_mb"])
    environment.prepare(config.device, probed=True)  # it may crash: it is the probe
    return _measured(config, request["micro_batch"], directory)


def _measured(config: Config, micro_batch: int, directory: Path) -> dict[str, Any]:
    import tensorflow as tf

    from accumtrain.data.build import open_data
    from accumtrain.engine.probe import measure
    from accumtrain.jobs.failures import explained

    doing = directory / child.DOING
    try:
        doing.write_text("opening the data")
        data = open_data(config.data, config.run.seed)
        doing.write_text("compiling, then timing updates")
        with explained(config, data):
            return measure(config, data, micro_batch, directory / "checkpoints")
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(str(error)) from error
