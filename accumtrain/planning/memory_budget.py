"""model.memory=<MB>: as much is kept for the backward pass as fits into a number of MB, foreseen and then measured.

A model's dial goes from what keeps least to what keeps all. No place on it changes a bit of what is learned.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from accumtrain.config.convert import from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say
from accumtrain.errors import CheckpointError, OutOfMemoryError
from accumtrain.kinds.values import is_finite_number
from accumtrain.planning.advice import remedies
from accumtrain.planning.auto_steps import ProbeFunction
from accumtrain.planning.foresight import foresee
from accumtrain.planning.probe import known_micro_batch, probe
from accumtrain.planning.search import line_through
from accumtrain.process.environment import kernel_settings
from accumtrain.process.processor import cpu
from accumtrain.runs.files import read_json, write_json
from accumtrain.runs.folder import folder_of
from accumtrain.runs.form import is_text
from accumtrain.runs.provenance import versions

FILE = "memory_budget.json"  # in the run's folder: a continued run keeps what it began to keep
DECIDING = ("model", "optim", "loss", "data", "ema", "accum", "batch_size", "precision", "device")  # for the peak
FOUND = {"model": {}, "peak_bytes": is_finite_number, "digest": is_text}  # the form of that file
FILLED = 0.97  # of the budget, as a long run packs memory less well than a probe


def with_least_memory(config: Config) -> Config:
    """`config` with the policy that keeps least, in place of model.memory=<MB>."""
    if isinstance(config.model.memory, str):
        return config
    return replace(config, model=config.model.with_policy(config.model.policies[-1]))


def with_memory_settled(config: Config) -> Config:
    """`config` with what is to be kept in place of model.memory=<MB>: as its run began, or looked for.

    Raises:
        OutOfMemoryError: even what keeps least takes more.
    """
    budget = config.model.memory
    if isinstance(budget, str):
        return config
    file, digest = folder_of(config) / FILE, _digest(config)
    found = _read(file, digest)
    if found is None:
        say(f"model.memory={budget}: looking for what can be kept in {budget} MB, once for this run")
        settled, peak = settle(config, probe)
        found = {"model": to_mapping(settled)["model"], "peak_bytes": peak, "digest": digest}
        with suppress(CheckpointError):  # a full disk is told by what can't do without it
            write_json(file, found)
    settled = from_mapping({**to_mapping(config), "model": found["model"]})
    took = format_bytes(found["peak_bytes"])
    say(f"model.memory={budget}: {settled.model.kept_in_words}, which took {took} in a probe")
    return settled


def settle(config: Config, attempt: ProbeFunction) -> tuple[Config, int]:
    """The configuration that keeps most within the budget, and the peak of its probe in bytes.

    Raises:
        OutOfMemoryError: even what keeps least takes more.
    """
    budget = config.model.memory
    assert isinstance(budget, int)
    dial = [replace(config, model=model) for model in config.model.dial()]
    replicas = config.device.known_replicas
    search = _Search(dial, FILLED * budget * 2**20, known_micro_batch(config))
    try:
        place, peak = search.largest(attempt)
    except OutOfMemoryError as error:
        others = "; ".join(f"{each.override} ({each.effect})" for each in remedies(dial[0], replicas))
        raise OutOfMemoryError(f"model.memory={budget}: {error}. Less would take: {others}") from error
    return dial[place], peak


class _Search:
    """Looks for the last place of a dial that fits: first by what is foreseen, then by probes.

    Args:
        dial: increasing in memory.
        budget: bytes at most.
        micro_batch: examples of a micro-step on one replica; None is that of accum.steps, if only a job can tell.
    """

    def __init__(self, dial: Sequence[Config], budget: float, micro_batch: int | None):
        self._dial, self._budget, self._micro_batch = dial, budget, micro_batch
        self._foreseen: dict[int, float] = {}
        self._probed: dict[int, int] = {}

    def largest(self, attempt: ProbeFunction) -> tuple[int, int]:
        """The place, and the peak of its probe in bytes.

        Raises:
            OutOfMemoryError: the first place does not fit either.
        """
        place = self._largest_foreseen()
        low, high = -1, len(self._dial)  # the largest that fits, and the smallest that does not
        while low < place < high:
            trial = attempt(self._dial[place], self._micro_batch)
            if trial.peak_bytes is not None:
                self._probed[place] = trial.peak_bytes
            if trial.fits and trial.peak_bytes is not None and trial.peak_bytes <= self._budget:
                low = place
            else:
                high = place
            place = self._best_guess(low, high)
        if low < 0:
            raise OutOfMemoryError(self._too_little())
        return low, self._probed[low]

    def _largest_foreseen(self) -> int:
        """The last place that is foreseen to fit; the first one if none is, or if nothing can be foreseen."""
        last = len(self._dial) - 1
        if not self._foresee({0, max(0, last - 1), last}):
            return 0
        while True:
            low = max((place for place, size in self._foreseen.items() if size <= self._budget), default=0)
            high = min((place for place, size in self._foreseen.items() if size > self._budget), default=last + 1)
            guess = self._best_guess(low, high)
            if guess <= low or not self._foresee({guess, min(guess + 1, last)} - self._foreseen.keys()):
                return low

    def _best_guess(self, low: int, high: int) -> int:
        """The last place between `low` and `high` that should fit by all that is known; 0 or `low` if none should."""
        known = self._foreseen or self._probed
        if len(known) < 2:  # a probe that has run out of memory tells no peak
            return high - 1 if high == len(self._dial) else (max(low, 0) + high) // 2
        near = range(max(low, 0) + 1, high)
        fitting = [place for place in near if self._expected(place) <= self._budget]
        return max(fitting, default=max(low, 0))

    def _expected(self, place: int) -> float:
        """Bytes on straight lines through what is foreseen, in proportion to the nearest probe."""
        known = self._foreseen or self._probed
        expected = on_lines(known, place)
        if not self._probed:
            return expected
        nearest = min(self._probed, key=lambda each: abs(each - place))
        return expected * self._probed[nearest] / on_lines(known, nearest)

    def _too_little(self) -> str:
        peak = self._probed.get(0)
        of = f"accum.steps={self._dial[0].accum.count}" if self._micro_batch is None else str(self._micro_batch)
        needs = f"micro-batches of {of} need"
        if peak is None:
            return f"{needs} more than is free"
        least = math.ceil(peak / FILLED / 2**20)
        return f"{needs} {format_bytes(peak)} even with {self._dial[0].model.kept_in_words}, so model.memory={least}"

    def _foresee(self, places: Collection[int]) -> bool:
        """Whether it can be foreseen what these places take."""
        if self._micro_batch is None:
            return False
        found = foresee([self._dial[place] for place in sorted(places)], [self._micro_batch])
        if isinstance(found, str):
            say(f"what can be kept can't be foreseen, so it is tried: {found}")
            return False
        for place, each in zip(sorted(places), found, strict=True):
            self._foreseen[place] = each.peak_bytes(self._micro_batch)
        return True


def on_lines(known: Mapping[int, float], place: int) -> float:
    """The value at a place, on straight lines through at least two known ones."""
    places = sorted(known)
    upper = min(max(bisect_left(places, place), 1), len(places) - 1)
    base, slope = line_through(*((each, known[each]) for each in (places[upper - 1], places[upper])))
    return base + slope * place


def _digest(config: Config) -> str:
    """Of all that the peak of a run depends on."""
    values = to_mapping(config)
    facts = [{key: values[key] for key in DECIDING}, cpu(), os.cpu_count(), kernel_settings(), versions()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read(file: Path, digest: str) -> dict[str, Any] | None:
    """What was found for the same run on the same machine; None if there is nothing."""
    if not file.exists():
        return None
    try:
        found = read_json(file, FOUND)
    except CheckpointError:
        return None  # damaged: it is looked for again
    return found if found.get("digest") == digest and found.keys() == FOUND.keys() else None
