"""What a rehearsal has taken and given back, with the size of each piece as a line over the micro-batch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accumtrain.engine.allocation_log import Change
from accumtrain.engine.operation_places import Place, operation_of
from accumtrain.engine.rehearsal import COMMIT, END, FILL, SETTLED, STEP, Rehearsal

STATE, DATA, WORKSPACE, OTHER = "state", "data", "workspace", "other"
MOST_UNMATCHED = 0.2  # of what the larger micro-steps take in all


@dataclass(frozen=True)
class Piece:
    """A piece of memory: `base` + `slope` * micro-batch bytes are asked for.

    Attributes:
        kind: state, data, workspace, forward, replay, gradient, commit or other.
        operation: the type or name of what took it, as TensorFlow calls it.
        layer: path of the layer that it belongs to; empty if to none.
    """

    base: float
    slope: float
    kind: str
    operation: str = ""
    layer: str = ""

    def asked(self, micro_batch: float) -> int:
        """Bytes asked for."""
        return max(1, round(self.base + self.slope * micro_batch))


@dataclass(frozen=True)
class Recording:
    """Pieces, and in which order they are taken (their number) and given back (its complement, ~number).

    Attributes:
        fill: with which action the data pipeline begins to get its first batches ready.
        steps: with which action each micro-step begins.
        after_steps: with which action the commit, or whatever else follows, begins.
    """

    pieces: Sequence[Piece]
    actions: Sequence[int]
    fill: int
    steps: Sequence[int]
    after_steps: int


class NotRepeatableError(Exception):
    """The two sizes have not run the same operations."""


@dataclass
class _Taken:
    """A piece of the log: in which part of the rehearsal it was taken, and by what."""

    change: Change
    part: str
    repetition: int
    by_step: bool  # by the step itself, not by the data pipeline
    ended: int | None = None


def record(rehearsal: Rehearsal) -> Recording:
    """The recording of a rehearsal.

    Raises:
        NotRepeatableError: what the two sizes have taken does not correspond.
    """
    taken, actions, moments = _pair(rehearsal)
    small, large = rehearsal.sizes
    data = _data_lines(taken, rehearsal)
    by_key = _by_key(taken, rehearsal)
    pieces, unmatched, all_bytes = [], 0, 0
    for number, each in enumerate(taken):
        base, slope = float(each.change.asked), 0.0
        if each.part == f"{STEP} {small}" or each.part == f"{STEP} {large}":
            if not each.by_step:
                share = data[each.part]
                base, slope = each.change.asked * share[0], each.change.asked * share[1]
            elif (pair := by_key[number]) is not None:
                slope = (pair[1] - pair[0]) / (large - small)
                base = pair[0] - slope * small
            elif each.part == f"{STEP} {large}" and operation_of(each.change.operation or "") in rehearsal.places:
                base, slope = 0.0, each.change.asked / large  # the small one has taken nothing in its place
                unmatched += each.change.asked
        if each.by_step and each.part == f"{STEP} {large}":
            all_bytes += each.change.asked
        pieces.append(_piece(each, base, slope, rehearsal.places))
    if unmatched > MOST_UNMATCHED * max(all_bytes, 1):
        raise NotRepeatableError(f"{unmatched} of {all_bytes} bytes were taken with {large} images only")
    fill = next(moment for moment, name in rehearsal.log.marks if name.startswith(FILL))
    begin, *steps, after = (bisect_left(moments, moment) for moment in (fill, *_begins_and_end(rehearsal)))
    return Recording(pieces, actions, begin, steps, after)


def _pair(rehearsal: Rehearsal) -> tuple[list[_Taken], list[int], list[int]]:
    """The pieces, the actions as in a Recording, and the moment of each action."""
    log = rehearsal.log
    marks, names = [moment for moment, _ in log.marks], [name for _, name in log.marks]
    of_step = _threads_of_steps(rehearsal)
    taken: list[_Taken] = []
    actions: list[int] = []
    moments: list[int] = []
    held: dict[int, int] = {}
    for change in log.changes:
        if change.taken:
            place = bisect_right(marks, change.moment) - 1
            part = names[place] if place >= 0 else ""
            held[change.address] = len(taken)
            actions.append(len(taken))
            moments.append(change.moment)
            # what the pipeline takes beside the steps belongs to the steps of that size
            size_of_step = part.replace(SETTLED, STEP).replace(FILL, STEP)
            taken.append(_Taken(change, size_of_step, place, change.thread in of_step))
        elif (number := held.pop(change.address, None)) is not None:
            taken[number].ended = change.moment
            actions.append(~number)
            moments.append(change.moment)
    return taken, actions, moments


def _begins_and_end(rehearsal: Rehearsal) -> list[int]:
    """The moments at which the micro-steps begin, and that of what follows the last one."""
    marks = rehearsal.log.marks
    begins = [moment for moment, name in marks if name.startswith(STEP)]
    return [*begins, next(moment for moment, name in marks if name in (COMMIT, END))]


def _threads_of_steps(rehearsal: Rehearsal) -> set[str]:
    """The thread that begins the micro-steps, and those that run more of their operations than others.

    Names of threads do not tell: TensorFlow's profiler calls a thread of the data pipeline by the name of one that has
    ended, if it has that one's place.
    """
    log = rehearsal.log
    begin, *_, end = _begins_and_end(rehearsal)
    of_steps, of_others = Counter[str](), Counter[str]()
    for change in log.changes:
        if change.operation and begin <= change.moment < end:
            counted = of_steps if operation_of(change.operation) in rehearsal.places else of_others
            counted[change.thread] += 1
    return {log.marked_by} | {thread for thread, count in of_steps.items() if count > of_others[thread]}


def _by_key(taken: Sequence[_Taken], rehearsal: Rehearsal) -> list[tuple[int, int] | None]:
    """For each piece the bytes that the small and the large micro-batch take in its place; None if either does not.

    Pieces correspond that are taken by the same operation, or after it on the same thread, as the n-th in a step.
    """
    keys: list[tuple[Any, ...] | None] = []
    sizes: dict[str, dict[tuple[Any, ...], int]] = {f"{STEP} {size}": {} for size in rehearsal.sizes}
    counts: Counter[tuple[Any, ...]] = Counter()
    last: dict[str, str] = {}
    repetition = -1
    for each in taken:
        key = None
        if each.by_step and each.part in sizes:
            if each.repetition != repetition:
                repetition, last = each.repetition, {}
                counts.clear()
            own = operation_of(each.change.operation or "")
            if own:
                last[each.change.thread] = own
            name = (last.get(each.change.thread), bool(own))
            if name[0] in rehearsal.places:
                key = (*name, counts[name])
                counts[name] += 1
                sizes[each.part].setdefault(key, each.change.asked)
        keys.append(key)
    small, large = sizes.values()
    return [None if key is None or key not in small or key not in large else (small[key], large[key]) for key in keys]


def _data_lines(taken: Sequence[_Taken], rehearsal: Rehearsal) -> dict[str, tuple[float, float]]:
    """For each size, what the bytes of the data pipeline are multiplied by: a line over the micro-batch.

    The pipeline does not take the same pieces in each step, but it holds the same once all its batches are ready.
    """
    ready = {}
    for size in rehearsal.sizes:
        moment = [moment for moment, name in rehearsal.log.marks if name == f"{SETTLED} {size}"][-1]
        ready[size] = sum(
            each.change.asked
            for each in taken
            if not each.by_step and each.change.moment <= moment and (each.ended is None or each.ended > moment)
        )
    small, large = rehearsal.sizes
    slope = (ready[large] - ready[small]) / (large - small)
    base = ready[small] - slope * small
    return {
        f"{STEP} {size}": (base / ready[size], slope / ready[size]) if ready[size] else (1.0, 0.0) for size in ready
    }


def _piece(each: _Taken, base: float, slope: float, places: Mapping[str, Place]) -> Piece:
    operation = operation_of(each.change.operation or "")
    kind, layer = places.get(operation, (OTHER, ""))
    ended = each.change.operation_ended
    if not each.by_step:
        kind, layer = DATA, ""
    elif each.part == COMMIT:
        kind = COMMIT
    elif not each.part.startswith(STEP):
        kind = STATE
    elif kind != OTHER and each.ended is not None and ended is not None and each.ended <= ended:
        kind = WORKSPACE
    return Piece(base, slope, kind, operation, layer)
