"""A recording played through the model of the allocator, for a micro-batch that was not run: its peak, and why."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from random import Random

from accumtrain.engine.operation_places import in_words
from accumtrain.planning.best_fit import BestFitAllocator
from accumtrain.planning.recording import DATA, Piece, Recording
from accumtrain.planning.timing import with_other_timing

MOMENTS = 3
NUMBER = re.compile(r"_\d+$")  # by which operations of the same type differ
UNIT_PARTS = 4  # of a layer's path, such as segments/1/units/2: moments in the same unit are told once
RUNS = 5  # that are played for a peak, at most
AGREE = 0.01  # the first two that agree so closely are enough
FEWEST, MOST = 12, 48  # micro-steps of each
ACTIONS = 100_000  # of each, unless the fewest steps take more
FIRST_LARGE = 1  # the first step of a recording that has the larger size
NO_LIMIT = 2**50  # bytes: whether a peak fits is decided afterwards
_Step = tuple[Sequence[int], Sequence[int]]  # its actions, and the places of the data pipeline's among them


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
    """Plays a recording for several micro-batches. What comes before the first batch is played once.

    Args:
        first_piece: bytes that the process has taken and given back before, so that later pieces lie side by side.
    """

    def __init__(self, recording: Recording, first_piece: int = 0):
        self._recording, self._before = recording, recording.fill
        spans = list(pairwise([*recording.steps, recording.after_steps]))[FIRST_LARGE:]
        self._steps_begin = spans[0][0]
        self._repeated = [self._step(*span) for span in spans]
        of_a_step = max(1, sum(len(actions) for actions, _ in self._repeated) // len(spans))
        self._steps = max(FEWEST, min(MOST, ACTIONS // of_a_step))
        self._runs: dict[int, list[list[int]]] = {}
        self._start = _State(BestFitAllocator(limit=NO_LIMIT), {})
        if first_piece:
            allocator = self._start.allocator
            for address in (allocator.take(1), allocator.take(first_piece)):  # its shape, which lies in a region before
                allocator.give_back(address)
        self._start.play(recording.actions[: self._before], self._asked(1))  # state does not depend on the micro-batch

    def _asked(self, micro_batch: int) -> list[int]:
        """Bytes that each piece asks for."""
        return [piece.asked(micro_batch) for piece in self._recording.pieces]

    def _before_steps(self, asked: Sequence[int]) -> _State:
        """With the first batches ready, before the steps that are played."""
        state = self._start.copy()
        state.play(self._recording.actions[self._before : self._steps_begin], asked)
        return state

    def peak_bytes(self, micro_batch: int) -> int:
        """The peak of a run.

        How well the allocator packs memory depends on when the data pipeline takes its part, which differs from step to
        step. So several runs are played, each with a timing of its own, and the median of their peaks is taken. The
        peak rises with the steps, most where the pipeline takes much of it: in small models, which play more steps.
        """
        asked = self._asked(micro_batch)
        filled = self._before_steps(asked)
        peaks: list[int] = []
        for seed in range(RUNS):
            peaks.append(self._peak_of_run(filled.copy(), asked, seed))
            if len(peaks) == 2 and max(peaks) - min(peaks) <= AGREE * min(peaks):
                break
        return round(statistics.median(peaks))

    def _peak_of_run(self, state: _State, asked: Sequence[int], seed: int) -> int:
        ready = list(state.addresses)
        peak = 0
        for step, actions in enumerate(self._run(seed)):
            if step and step % len(self._repeated) == 0:
                self._renew(state, ready, asked)
            peak = max(peak, state.play(actions, asked))
        return peak

    def _run(self, seed: int) -> list[list[int]]:
        """The actions of each step of a run, which are those of every micro-batch."""
        if seed not in self._runs:
            draw, steps = Random(seed), islice(cycle(self._repeated), self._steps)
            self._runs[seed] = [with_other_timing(actions, of_data, draw) for actions, of_data in steps]
        return self._runs[seed]

    def _step(self, begin: int, end: int) -> _Step:
        actions, pieces = self._recording.actions[begin:end], self._recording.pieces
        return actions, [place for place, action in enumerate(actions) if pieces[max(action, ~action)].kind == DATA]

    def _renew(self, state: _State, ready: Sequence[int], asked: Sequence[int]) -> None:
        """Replaces what the last recorded step leaves by what the repeated ones begin with, alike in size."""
        left = [state.addresses.pop(number) for number in state.addresses.keys() - set(ready)]
        state.play([number for number in ready if number not in state.addresses], asked)
        for address in sorted(left):
            state.allocator.give_back(address)

    def commit_bytes(self) -> int:
        """The peak of the commit, after micro-steps of one image."""
        state, end, asked = self._start.copy(), self._recording.after_steps, self._asked(1)
        state.play(self._recording.actions[self._before : end], asked)
        return state.play(self._recording.actions[end:], asked)

    def moments(self, micro_batch: int) -> list[Moment]:
        """The largest moments of the three units and kinds of memory that have the largest ones, the peak first."""
        asked, pieces = self._asked(micro_batch), self._recording.pieces
        state = self._before_steps(asked)
        allocator, addresses = state.allocator, state.addresses
        sizes = {number: allocator.size(address) for number, address in addresses.items()}
        held_before = set(addresses)
        largest: dict[tuple[str, str], tuple[int, int]] = {}  # bytes, and after which action
        for place, number in enumerate(self._recording.actions[self._steps_begin :]):
            state.play([number], asked)
            if number < 0:
                continue
            sizes[number] = allocator.size(addresses[number])
            group = pieces[number].kind, "/".join(pieces[number].layer.split("/")[:UNIT_PARTS])
            if allocator.in_use > largest.get(group, (0, 0))[0]:
                largest[group] = allocator.in_use, place
        top = sorted(largest.values(), reverse=True)[:MOMENTS]
        return [self._moment(place, held_before, sizes) for _, place in top]

    def _moment(self, place: int, held_before: set[int], sizes: dict[int, int]) -> Moment:
        pieces = self._recording.pieces
        actions = self._recording.actions[self._steps_begin : self._steps_begin + place + 1]
        held: Counter[str] = Counter()
        taken = held_before.union(action for action in actions if action >= 0)
        for number in taken.difference(~action for action in actions if action < 0):
            held[pieces[number].kind] += sizes[number]
        piece = pieces[actions[place]]
        return Moment(
            piece.kind, piece.layer, piece.operation, _words(piece), sum(held.values()), dict(held.most_common())
        )


def _words(piece: Piece) -> str:
    operation = NUMBER.sub("", piece.operation.rpartition("/")[2])
    where = in_words(piece.layer)
    return f"{piece.kind}{f' of {where}' * bool(where)}{f' ({operation})' * bool(operation)}"


@dataclass
class _State:
    """The allocator, and where each piece lies while it is held."""

    allocator: BestFitAllocator
    addresses: dict[int, int]

    def play(self, actions: Sequence[int], asked: Sequence[int]) -> int:
        """Takes and gives back pieces, and returns the most bytes that are handed out at a time."""
        return self.allocator.play(actions, asked, self.addresses)

    def copy(self) -> _State:
        return _State(self.allocator.copy(), self.addresses.copy())
