"""A recording played through the model of the allocator, for a micro-batch that was not run: its peak, and why."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from accumtrain.engine.operation_places import in_words
from accumtrain.planning.best_fit import BestFitAllocator
from accumtrain.planning.recording import Piece, Recording

MOMENTS = 3
NUMBER = re.compile(r"_\d+$")  # by which operations of the same type differ
UNIT_PARTS = 4  # of a layer's path, such as segments/1/units/2: moments in the same unit are told once
SHARES = (31 / 32, 1.0, 33 / 32)  # of the micro-batch: sizes that are played for its peak
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
    """Plays a recording for several micro-batches. What comes before the first micro-step is played once."""

    def __init__(self, recording: Recording):
        self._recording, self._before = recording, recording.steps[0]
        self._start = _State(BestFitAllocator(limit=NO_LIMIT), {}, {})
        for _ in self._play(self._start, 0, self._before, micro_batch=1):
            pass  # state does not depend on the micro-batch

    def peak_bytes(self, micro_batch: int) -> int:
        """The peak of the micro-steps.

        How well the allocator packs memory differs from step to step, by chance, by some percent of what a step takes.
        So the steps are played for two sizes beside this one too, and the three peaks averaged.
        """
        static = self._start.allocator.in_use
        largest = []
        for share in SHARES:
            of_steps = self._peaks(micro_batch * share)[:-1]
            largest.append(static + (max(of_steps) - static) / share)
        return round(statistics.mean(largest))

    def commit_bytes(self) -> int:
        """The peak of the commit, after micro-steps of one image."""
        return self._peaks(1)[-1]

    def _peaks(self, micro_batch: float) -> list[int]:
        """The most that is held in each micro-step, and in what follows them."""
        state = self._start.copy()
        recording = self._recording
        peaks = []
        begins = [*recording.steps, recording.after_steps, None]
        for begin, end in pairwise(begins):
            assert begin is not None
            taken = (state.allocator.in_use for _ in self._play(state, begin, end, micro_batch))
            peaks.append(max(taken, default=state.allocator.in_use))
        return peaks

    def moments(self, micro_batch: int) -> list[Moment]:
        """The largest moments of the three units and kinds of memory that have the largest ones, the peak first."""
        state = self._start.copy()
        largest: dict[tuple[str, str], tuple[int, int]] = {}  # bytes, and after which action
        for place, piece in self._play(state, self._before, None, micro_batch):
            group = piece.kind, "/".join(piece.layer.split("/")[:UNIT_PARTS])
            if state.allocator.in_use > largest.get(group, (0, 0))[0]:
                largest[group] = state.allocator.in_use, place
        top = sorted(largest.values(), reverse=True)[:MOMENTS]
        return [self._moment(place, state.sizes) for _, place in top]

    def _play(self, state: _State, first: int, end: int | None, micro_batch: float) -> Iterator[tuple[int, Piece]]:
        """Plays actions; yields the place of each that takes a piece, and the piece."""
        for place, number in enumerate(self._recording.actions[first:end], first):
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
