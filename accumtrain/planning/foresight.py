"""What micro-batches take, without running them: a short rehearsal of each memory policy, and a model of the allocator.

The policies are rehearsed side by side, each in a process of its own, which runs `answer`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accumtrain.config.convert import from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import say
from accumtrain.errors import OutOfMemoryError, first_line
from accumtrain.planning import plan_cache
from accumtrain.planning.probe import OF_MEMORY, STOPPED
from accumtrain.process import child, environment
from accumtrain.process.free_memory import free_bytes
from accumtrain.process.program import child_command

TASK = "accumtrain.planning.foresight:answer"
ONE_REHEARSAL = 3 * 2**30  # bytes of free memory for each that runs at a time


@dataclass(frozen=True)
class ForeseenPoint:
    """What a micro-batch takes, as foreseen.

    Attributes:
        moments: fields of the largest `played.Moment`s, the peak first.
    """

    micro_batch: int
    peak_bytes: int
    moments: list[dict[str, Any]]


@dataclass(frozen=True)
class Foreseen:
    """What the micro-batches of one memory policy take.

    Attributes:
        memory: the policy.
        static_bytes: tensors that are always there: weights, buffers, optimizer state.
        beside_bytes: resident memory of the process beside its tensors.
        commit_bytes: tensors at the peak of a commit; 0 if it was not rehearsed with this policy.
        points: increasing micro-batches.
        batch_norm: whether the model has a norm that takes statistics of a micro-batch.
    """

    memory: str
    static_bytes: int
    beside_bytes: int
    commit_bytes: int
    points: list[ForeseenPoint]
    batch_norm: bool = False

    def resident_bytes(self, peak_bytes: float) -> float:
        """About the resident memory of the process at a peak of tensors."""
        return peak_bytes + self.beside_bytes

    def peak_bytes(self, micro_batch: int) -> float:
        """The peak of any micro-batch, on straight lines through the points."""
        lower = max((point for point in self.points[:-1] if point.micro_batch <= micro_batch), key=_size, default=None)
        if lower is None:
            return self.points[0].peak_bytes
        upper = self.points[self.points.index(lower) + 1]
        slope = (upper.peak_bytes - lower.peak_bytes) / (upper.micro_batch - lower.micro_batch)
        return lower.peak_bytes + slope * (micro_batch - lower.micro_batch)


def _size(point: ForeseenPoint) -> int:
    return point.micro_batch


def why_not(config: Config) -> str | None:
    """Why the memory of `config` can't be foreseen but must be tried; None if it can be foreseen."""
    if not environment.on_one_cpu(config.device):
        return "it is not on one CPU"
    if config.device.xla is True:
        return "XLA compiles it"
    if os.environ.get(environment.OPERATIONS_AT_ONCE, "1") != "1":
        return f"{environment.OPERATIONS_AT_ONCE} lets operations run side by side"
    return None


def foresee(variants: Sequence[Config], sizes: Sequence[int]) -> list[Foreseen] | str:
    """What each of `variants`, which differ in the memory policy, takes with each micro-batch of `sizes`.

    Returns:
        In the order of `variants`; or why it can't be foreseen.

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
        KeyboardInterrupt: a signal stopped a child.
        RuntimeError: a child ended by a bug; the end of its stderr is in the message.
    """
    reason = why_not(variants[0])
    if reason is not None:
        return reason
    free = free_bytes()
    requests = [_request(each, sizes, free, commit=each is variants[0]) for each in variants]
    answers = [plan_cache.read(request) for request in requests]
    missing = [request for request, found in zip(requests, answers, strict=True) if found is None]
    if missing:
        found = _ask(missing, free)
        if isinstance(found, str):
            return found
        for request, each in zip(missing, found, strict=True):
            plan_cache.write(request, each)
        fresh = iter(found)
        answers = [next(fresh) if each is None else each for each in answers]
    else:
        say(f"from {plan_cache.folder()}, where an earlier plan of the same command, program and machine left it")
    foreseen = [
        Foreseen(**{**each, "points": [ForeseenPoint(**point) for point in each["points"]]}) for each in answers if each
    ]
    commit = max(each.commit_bytes for each in foreseen)
    return [_at_least(each, commit) for each in foreseen]


def _at_least(foreseen: Foreseen, commit_bytes: int) -> Foreseen:
    """With the peak of the commit, which is the same under each policy, where that of the micro-steps is smaller."""
    points = [replace(point, peak_bytes=max(point.peak_bytes, commit_bytes)) for point in foreseen.points]
    return replace(foreseen, points=points)


def _request(config: Config, sizes: Sequence[int], free: int, *, commit: bool) -> dict[str, Any]:
    device = replace(config.device, memory_limit_mb=None)
    return {
        child.TASK: TASK,
        child.PREPARE: child._prepare.get(),  # so that the answer for a model in memory is not taken for another's
        "config": to_mapping(replace(config.with_accum_steps(1), device=device)),
        "sizes": list(sizes),
        "commit": commit,
        "free_mb": free // 2**20,
    }


def _ask(requests: Sequence[dict[str, Any]], free: int) -> list[dict[str, Any]] | str:
    memory = [request["config"]["model"]["memory"] for request in requests]
    say(f"rehearsing {', '.join(memory)}: two small micro-batches each")
    at_once = max(1, free // ONE_REHEARSAL)  # also more than processors: each has moments with little to do
    ends = child.ask_all(child_command(), requests, "probe", "importing TensorFlow", at_once)
    for ended in ends:
        if ended.code in STOPPED:
            raise KeyboardInterrupt
        if ended.code == OutOfMemoryError.exit_code or ended.code in OF_MEMORY:
            return "there is no memory for a rehearsal"
        child.check(ended, "a rehearsal")
        if "refused" in ended.answer:
            return str(ended.answer["refused"])
    return [ended.answer for ended in ends]


# --- in the child -----------------------------------------------------------------------------------------------


def answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Rehearses the requested run. Returns fields of Foreseen, or `refused`, why it can't be rehearsed."""
    config = from_mapping(request["config"])
    environment.limit_without_job(request["free_mb"])
    environment.prepare(config.device, probed=True)
    import tensorflow as tf

    from accumtrain.data.open_data import open_data
    from accumtrain.devices.cpu import take_memory_in_one_piece
    from accumtrain.devices.resolve import resolve
    from accumtrain.engine.memory_meter import Meter
    from accumtrain.engine.rehearsal import rehearse
    from accumtrain.planning.played import Replay
    from accumtrain.planning.recording import NotRepeatableError, record
    from accumtrain.planning.tensorflow_errors import in_user_words

    doing = folder / child.DOING
    doing.write_text("opening the data", encoding="utf-8")
    data = open_data(config.data, config.run.seed)
    doing.write_text("compiling, then running two small micro-batches", encoding="utf-8")
    meter = Meter()
    meter.start()
    try:
        with in_user_words(config, data):
            rehearsal = rehearse(config, resolve(config.device), data, commit=request["commit"])
        recording = record(rehearsal)
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(str(error)) from error
    except (ValueError, TypeError, tf.errors.OpError, NotRepeatableError) as error:
        return {"refused": f"the rehearsal failed: {first_line(error)}"}
    doing.write_text("playing the allocations of each micro-batch", encoding="utf-8")
    memory = meter.read()
    resident, tensors = memory["rss_peak_bytes"], memory["tensor_peak_bytes"]
    assert resident is not None
    assert tensors is not None
    replay = Replay(recording, take_memory_in_one_piece() * 2**20)
    points = [
        ForeseenPoint(size, replay.peak_bytes(size), [asdict(moment) for moment in replay.moments(size)])
        for size in request["sizes"]
    ]
    commit = replay.commit_bytes() if request["commit"] else 0
    beside = max(0, resident - tensors)
    return asdict(Foreseen(config.model.policy, rehearsal.static_bytes, beside, commit, points, rehearsal.batch_norm))
