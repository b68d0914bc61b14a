"""A probe: a few updates in a child process.

The child may run out of memory without harm, and its memory can be measured. It runs `run_probe_request`.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import say
from accumtrain.devices.config import DeviceConfig
from accumtrain.errors import OutOfMemoryError, Preempted
from accumtrain.fields import JAX
from accumtrain.measure.search import doubled, micro_batches
from accumtrain.process import child, environment
from accumtrain.process.machine import free_bytes
from accumtrain.process.program import child_command
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.runs.names import CHECKPOINTS

# Share of a limit that a probe may use, as the allocator packs memory less well over many updates than over two.
SHARE = 0.95
ROOM = (1, 1.25, 1.5, 2)  # times the lowest limit for a peak: the limits that are tried
PLANNED_SHARE = 1.0  # if a compiler's figure is compared with the limit: it is the same in the run
TASK = "accumtrain.measure.probe:run_probe_request"
# Exit codes of a process that gets no memory: from the system, from C++, and from TensorFlow kernels that do not check.
OUT_OF_MEMORY_EXITS = (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)
# Exit codes after a signal to the whole process group.
STOPPED_EXITS = (-signal.SIGINT, -signal.SIGTERM, Preempted.exit_code)


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe, or values on a straight line through others. A value that neither gives is None.

    Attributes:
        memory: the memory policy.
        micro_batch: examples per micro-step and replica.
        fits: it ran within the limit and the free memory.
        batch_norm: the model has a norm that takes statistics of a micro-batch.
        static_bytes: tensors that are always in memory: weights, buffers, optimizer state, resident data.
        peak_bytes: tensors at the peak, the static ones included.
        peak_by_compiler: peak_bytes is what the compiler has planned with, not what was measured.
        rss_bytes: peak resident memory of the process.
        examples_per_second: over whole updates of accum_steps micro-steps.
        seconds_to_first_update: from the start of the process.
        expected_bytes: an estimate of rss_bytes, where that is None.
        measured: it was run. If not, peak_bytes and expected_bytes lie on a line through probes that were.
    """

    memory: str
    micro_batch: int
    fits: bool
    accum_steps: int | None = None
    replicas: int | None = None
    batch_norm: bool | None = None
    static_bytes: int | None = None
    peak_bytes: int | None = None
    peak_by_compiler: bool | None = None
    rss_bytes: int | None = None
    examples_per_second: float | None = None
    seconds_to_first_update: float | None = None
    expected_bytes: int | None = None
    measured: bool = True

    @property
    def resident_bytes(self) -> int | None:
        """The peak of resident memory of the process, as measured, else as expected."""
        return self.expected_bytes if self.rss_bytes is None else self.rss_bytes

    @property
    def activation_bytes(self) -> int | None:
        """The peak without static tensors; with the scratch memory of kernels."""
        if self.peak_bytes is None or self.static_bytes is None:
            return None
        return self.peak_bytes - self.static_bytes


ProbeFunction = Callable[[Config, "int | None"], ProbeResult]  # `probe`, or a replacement for it in tests


def share_of_limit(device: DeviceConfig) -> float:
    """Return the share of device.memory_limit_mb that a probe may use."""
    return PLANNED_SHARE if device.runtime == JAX else SHARE


def find_limit(peak_bytes: int, share: float, fits: Callable[[int], bool]) -> int | None:
    """Return a limit in MB that fits: the lowest whose share holds the peak, or one with more room; None if none does.

    TensorFlow's allocator gives the whole of a free piece that is less than twice what is asked for. So a peak that was
    measured with much room may need up to twice as much.

    Args:
        share: of a limit that a probe may use, in whole MB.
        fits: probes under a limit.
    """
    limit = math.ceil(math.ceil(peak_bytes / 2**20) / share)
    return next((more for room in ROOM if fits(more := math.ceil(room * limit))), None)


def find_micro_batch(config: Config) -> int | None:
    """Return the examples of a micro-step on one replica, by accum.steps. None on GPUs, which only a job can count."""
    device = config.device
    if environment.takes_gpu(device):
        return None
    return micro_batch_size(config.batch_size, config.accum.count, device.known_replicas)


def probe(config: Config, micro_batch: int | None, note: str = "") -> ProbeResult:
    """Try `config` with a micro-batch, in a child process, within device.memory_limit_mb and the free memory.

    Args:
        micro_batch: None for that of accum.steps on the replicas that there are.
        note: text to print after the choices that are probed.

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
        KeyboardInterrupt: a signal stopped the child.
        RuntimeError: the child ended by a bug. The end of its stderr is in the message.
    """
    size = f"accum.steps={config.accum.count}" if micro_batch is None else f"micro-batch {micro_batch}"
    tried = micro_batch or micro_batch_size(config.batch_size, config.accum.count, config.device.known_replicas)
    if micro_batch is not None:
        config = config.with_accum_steps(1)  # micro_batch decides, not auto
    found = _ask(config, [micro_batch], f"{size}{note}")
    return ProbeResult(config.model.policy, tried, fits=False) if found is None else found[0]


def probe_smallest(config: Config, note: str = "") -> list[ProbeResult]:
    """Try the two smallest micro-batches, or the only one, in one child process. Arguments and errors are `probe`'s.

    Returns:
        Results by increasing micro-batch. None of them if they ran out of memory.
    """
    return _ask(config.with_accum_steps(1), None, f"two small micro-batches{note}") or []


def _ask(config: Config, micro_batches: Sequence[int | None] | None, what: str) -> list[ProbeResult] | None:
    """Return the results of a child, one after the other, or None if it ran out of memory.

    Args:
        micro_batches: None for the two smallest. The child knows them, as it counts the replicas.
    """
    say(f"probing {config.model.kept_in_words}, {config.optim.kind}, {config.precision}, {what}")
    free = int(SHARE * free_bytes())
    request = {
        child.TASK: TASK,
        "config": to_mapping(config),
        "micro_batches": micro_batches,
        "free_mb": free // 2**20,
    }
    with temporary_folder("probe") as folder:
        answer = measure_in_child(request, folder)
    if answer is None:
        return None
    trials = [ProbeResult(config.model.policy, fits=False, **fields) for fields in answer["measured"]]
    return [replace(trial, fits=trial.resident_bytes is not None and trial.resident_bytes <= free) for trial in trials]


def measure_in_child(request: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """Return the answer of a child, or None if it ran out of memory. Errors are `probe`'s."""
    ended = child.run_child(child_command(), folder, request, "importing TensorFlow")
    if ended.code == OutOfMemoryError.exit_code or ended.code in OUT_OF_MEMORY_EXITS:
        return None
    if ended.code in STOPPED_EXITS:
        raise KeyboardInterrupt
    child.raise_child_error(ended, "a probe")
    return ended.answer


# ---- in the child ----


def run_probe_request(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the requested probe. Return the fields of its results."""
    config = from_mapping(request["config"])
    limit = config.device.memory_limit_mb
    if limit is not None:
        probed = max(1, int(limit * share_of_limit(config.device)))
        config = replace(config, device=replace(config.device, memory_limit_mb=probed))
    else:  # the free memory is the limit: the probe fails before the machine does
        environment.limit_without_job(request["free_mb"])
    environment.prepare(config.device, probed=True)  # the probe itself may crash
    return {"measured": _measure(config, request["micro_batches"], folder)}


def _measure(config: Config, micro_batches: Sequence[int | None] | None, folder: Path) -> list[dict[str, Any]]:
    import tensorflow as tf

    from accumtrain.devices.resolve import resolve_devices
    from accumtrain.measure.dry_run import measure
    from accumtrain.tasks.objective import open_objective
    from accumtrain.train.tell.remedies import explain_errors

    doing = folder / child.DOING
    try:
        doing.write_text("opening the data", encoding="utf-8")
        devices = resolve_devices(config.device)  # first, as the data makes tensors
        objective = open_objective(config)
        doing.write_text("compiling, then timing updates", encoding="utf-8")
        with explain_errors(config, objective.stored):
            sizes = micro_batches or _smallest(config, devices.replicas)
            found = measure(config, objective, devices, sizes, folder / CHECKPOINTS)
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(str(error)) from error
    for later in found[1:]:
        _correct(later, found[0], on_cpu=devices.runtime.on_cpu)
    return found


def _correct(later: dict[str, Any], first: dict[str, Any], *, on_cpu: bool) -> None:
    """Take the graphs and the time of an earlier measurement in the same process out of a later one."""
    left = later["static_bytes"] - first["static_bytes"]
    peak = later["peak_bytes"] - left
    later |= {"static_bytes": first["static_bytes"], "peak_bytes": peak, "seconds_to_first_update": None}
    if on_cpu:  # as much is resident beside its tensors as with the first
        later |= {"rss_bytes": None, "expected_bytes": first["rss_bytes"] - first["peak_bytes"] + peak}


def _smallest(config: Config, replicas: int) -> list[int]:
    """Return the two smallest micro-batches of a table. The keys alone say which can be trained."""
    return doubled(micro_batches(config.batch_size // replicas, config.model.least_micro_batch))[:2]
