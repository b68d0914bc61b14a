"""A recording played through the model of the allocator, for a micro-batch that was not run: its peak, and why."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from accumtrain.engine.operation_places import in_words
from accumtrain.planning.best_fit import BestFitAllocator
from accumtrain.planning.recording import DATA, Piece, Recording
from accumtrain.planning.timing import with_other_timing

MOMENTS = 3
NUMBER = re.compile(r"_\d+$")  # by which operations of the same type differ
UNIT_PARTS = 4  # of a layer's path, such as segments/1/units/2: moments in the same unit are told once
RUNS = 5  # that are played for a peak
STEPS = 12  # micro-steps of each
FIRST_FULL = 2  # the first step of a recording that begins with all batches of its size ready
NO_LIMIT = 2**50  # bytes: whether a peak fits is decided afterwards


@dataclass(frozen=True)
class Moment:
    """A moment at which much is held.

    Attributes:
        kind, layer, operation: what takes memory then (see recording.Piece).
        words: the same for a user, such as `gradient of segment 1 unit 1 g conv 0 (Conv2DBackpropInput)`.
        bytes: handed out, what is always there included.
        held: of these, by kind.
    """

    kind: str
    layer: str
    operation: str
    words: str
    bytes: int
    held: dict[str, int]


class Replay:
    """Plays a recording for several micro-batches. What comes before the first micro-step is played once.

    Args:
        first_piece: bytes that the process has taken and given back before, so that later pieces lie side by side.
    """

    def __init__(self, recording: Recording, first_piece: int = 0):
        self._recording, self._before = recording, recording.steps[0]
        self._start = _State(BestFitAllocator(limit=NO_LIMIT), {}, {})
        if first_piece:
            allocator = self._start.allocator
            for address in (allocator.take(1), allocator.take(first_piece)):  # its shape, which lies in a region before
                allocator.give_back(address)
        self._go(self._start, recording.actions[: self._before], 1)  # state does not depend on the micro-batch

    def peak_bytes(self, micro_batch: int) -> int:
        """The peak of a run of STEPS micro-steps.

        How well the allocator packs memory depends on when the data pipeline takes its part, which differs from step to
        step. So several runs are played, each with a timing of its own, and the median of their peaks is taken.
        """
        return round(statistics.median(self._peak_of_run(micro_batch, Random(seed)) for seed in range(RUNS)))

    def _peak_of_run(self, micro_batch: int, draw: Random) -> int:
        recording = self._recording
        spans = list(pairwise([*recording.steps, recording.after_steps]))
        again = min(len(spans) - 1, FIRST_FULL)  # from here on steps can be repeated
        state = self._start.copy()
        self._go(state, recording.actions[self._before : spans[again][0]], micro_batch)
        ready = list(state.addresses)
        peak = 0
        for step in range(STEPS):
            begin, end = spans[again + step % (len(spans) - again)]
            if step and begin == spans[again][0]:
                self._renew(state, ready, micro_batch)
            actions = with_other_timing(recording.actions[begin:end], self._of_data, draw)
            peak = max(peak, self._go(state, actions, micro_batch))
        return peak

    def _renew(self, state: _State, ready: Sequence[int], micro_batch: int) -> None:
        """Replaces what the last recorded step leaves by what the repeated ones begin with, alike in size."""
        left = [state.addresses.pop(number) for number in state.addresses.keys() - set(ready)]
        self._go(state, [number for number in ready if number not in state.addresses], micro_batch)
        for address in sorted(left):
            state.allocator.give_back(address)

    def _go(self, state: _State, actions: Sequence[int], micro_batch: int) -> int:
        """Plays actions and returns the most that is held."""
        taken = (state.allocator.in_use for _ in self._play(state, actions, micro_batch))
        return max(taken, default=state.allocator.in_use)

    def _of_data(self, action: int) -> bool:
        return self._recording.pieces[max(action, ~action)].kind == DATA

    def commit_bytes(self) -> int:
        """The peak of the commit, after micro-steps of one image."""
        state, end = self._start.copy(), self._recording.after_steps
        self._go(state, self._recording.actions[self._before : end], 1)
        return self._go(state, self._recording.actions[end:], 1)

    def moments(self, micro_batch: int) -> list[Moment]:
        """The largest moments of the three units and kinds of memory that have the largest ones, the peak first."""
        state = self._start.copy()
        largest: dict[tuple[str, str], tuple[int, int]] = {}  # bytes, and after which action
        for place, piece in self._play(state, self._recording.actions[self._before :], micro_batch):
            group = piece.kind, "/".join(piece.layer.split("/")[:UNIT_PARTS])
            if state.allocator.in_use > largest.get(group, (0, 0))[0]:
                largest[group] = state.allocator.in_use, self._before + place
        top = sorted(largest.values(), reverse=True)[:MOMENTS]
        return [self._moment(place, state.sizes) for _, place in top]

    def _play(self, state: _State, actions: Sequence[int], micro_batch: float) -> Iterator[tuple[int, Piece]]:
        """Plays actions; yields the place among them of each that takes a piece, and the piece."""
        for place, number in enumerate(actions):
            if number < 0:
                state.allocator.give_back(state.addresses.pop(~number))
                continue
            piece = self._recording.pieces[number]
            state.addresses[number] = address = state.allocator.take(piece.asked(micro_batch))
            state.sizes[number] = state.allocator.size(address)
            yield place, piece

    def _moment(self, place: int, sizes: dict[int, int]) -> Moment:
        held: Counter[str] = Counter()
        for number in self._recording.actions[: place + 1]:
            kind = self._recording.pieces[max(number, ~number)].kind
            held[kind] += sizes[number] if number >= 0 else -sizes[~number]
        piece = self._recording.pieces[self._recording.actions[place]]
        return Moment(
            piece.kind, piece.layer, piece.operation, _words(piece), sum(held.values()), dict(held.most_common())
        )


def _words(piece: Piece) -> str:
    operation = NUMBER.sub("", piece.operation.rpartition("/")[2])
    where = in_words(piece.layer)
    return f"{piece.kind}{f' of {where}' * bool(where)}{f' ({operation})' * bool(operation)}"


@dataclass
class _State:
    """The allocator, and of each piece where it lies, while it is held, and how large it is."""

    allocator: BestFitAllocator
    addresses: dict[int, int]
    sizes: dict[int, int]

    def copy(self) -> _State:
        return _State(self.allocator.copy(), self.addresses.copy(), self.sizes.copy())
