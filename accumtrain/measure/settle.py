"""The run in the folder, which keeps what probes found for it, and model.memory=<MB>."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.config.roles import keys_with
from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, warn
from accumtrain.errors import CheckpointError, OutOfMemoryError
from accumtrain.fields import Role, format_value, value_at
from accumtrain.measure.probe import ProbeFunction, ProbeResult, find_micro_batch, probe
from accumtrain.measure.search import largest_that_fits
from accumtrain.process.environment import kernel_settings
from accumtrain.process.machine import cpu
from accumtrain.runs.checkpoint_store import newest_first
from accumtrain.runs.contents import read_config
from accumtrain.runs.files import read_json, write_json
from accumtrain.runs.folder import job_folder
from accumtrain.runs.names import CHECKPOINTS, differences, folder_of, learned_values
from accumtrain.runs.provenance import versions
from accumtrain.runs.schema import KeptActivations
from accumtrain.train.tell.remedies import remedies

FILE = "memory_budget.json"  # in the run's folder, as a continued run keeps the same
FILLED = 0.9  # share of the budget for a probe: a run of RevNet-38 at 32 pixels took up to 8 % more than its probe


# ---- the beginning of the run in the folder ----


def has_fitted(config: Config) -> bool:
    """Return whether the run in the folder began with the same peak. It has been found to fit then."""
    try:
        return began_with_same_peak(config)
    except CheckpointError:
        return False  # the run warns where it is opened


def began_with_same_peak(config: Config) -> bool:
    """Return whether the run in the folder has made updates with the peak of `config`. If not, say what differs.

    Raises:
        CheckpointError: its config.yaml is damaged.
    """
    path = _config_file(config)
    updated = any(saved.step > 0 for saved in newest_first(path.parent / CHECKPOINTS))
    if not (path.exists() and updated):  # the first update may have been too large
        return False
    began, now = _peak_values(read_config(path)), _peak_values(to_mapping(config))
    if config.accum.is_auto:
        del now["accum.steps"]
    changed = differences(began, now)
    if changed:
        say(f"searching again for what fits, because the run in {path.parent} began with other values: {changed}")
    return not changed


def _peak_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that decide the peak, by dotted key. Workers may have other addresses."""
    learned = {key: value for key, value in learned_values(values).items() if not key.startswith(("schedule.", "run."))}
    others = {key: value_at(values, key) for key in (*keys_with(Role.MEMORY, values), "device.runtime")}
    return learned | others | {"workers": len(value_at(values, "device.workers") or [])}


def read_started_steps(config: Config) -> int | None:
    """Return accum.steps of the run that `config` goes on with, or None."""
    try:
        return _read_steps(config) if began_with_same_peak(config) else None
    except CheckpointError as error:
        warn(f"{error}; accum.steps is searched for again")
        return None


def read_trained_steps(config: Config) -> int:
    """Return accum.steps of the run in the folder.

    Raises:
        CheckpointError: there is no run, or its config.yaml is damaged.
    """
    steps = _read_steps(config)
    if steps is None:
        raise CheckpointError(f"no run in {folder_of(config)}: train first, with the same run.name")
    return steps


def _read_steps(config: Config) -> int | None:
    path = _config_file(config)
    if not path.exists():
        return None
    steps = value_at(read_config(path), "accum.steps")
    if steps == "auto" or steps < 1:
        raise CheckpointError(f"{path} is damaged: accum.steps={format_value(steps)} is not a number of micro-batches")
    return int(steps)


def _config_file(config: Config) -> Path:
    return folder_of(config) / "config.yaml"  # there is one when the run has begun


# ---- model.memory=<MB> ----


def find_kept_activations(config: Config) -> Config:
    """Return `config` with the policy that keeps most within model.memory=<MB>, as its run began or by probes."""
    budget = config.model.memory
    file, digest = job_folder(config) / FILE, _digest(config)
    found = _read(file, digest)
    if found is None:
        say(f"model.memory={budget}: looking for what can be kept in {budget} MB, once for this run")
        settled, peak = choose_kept_activations(config, probe)
        found = {"model": to_mapping(settled)["model"], "peak_bytes": peak, "digest": digest}
        with suppress(CheckpointError):  # on a full disk the run itself fails
            write_json(file, found)
    settled = from_mapping({**to_mapping(config), "model": found["model"]})
    took = format_bytes(found["peak_bytes"])
    say(f"model.memory={budget}: {settled.model.kept_in_words}, which took {took} in a probe")
    return settled


def choose_kept_activations(config: Config, attempt: ProbeFunction) -> tuple[Config, int]:
    """Return the configuration that keeps most within the budget, and the peak of its probe in bytes.

    Raises:
        OutOfMemoryError: even the policy that keeps least takes more.
    """
    budget = config.model.memory
    assert isinstance(budget, int)
    most = FILLED * budget * 2**20
    dial = [replace(config, model=model) for model in config.model.memory_steps()]
    trials: dict[int, ProbeResult] = {}

    def peak_of(index: int) -> int | None:
        trials[index] = attempt(dial[index - 1], find_micro_batch(config))
        peak = trials[index].peak_bytes
        return peak if trials[index].fits and peak is not None and peak <= most else None

    best = largest_that_fits(range(1, len(dial) + 1), peak_of, lambda: most)
    if best is None:
        raise OutOfMemoryError(f"model.memory={budget}: {_too_little(dial[0], trials[1])}")
    peak = trials[best].peak_bytes
    assert peak is not None
    return dial[best - 1], peak


def _too_little(least: Config, trial: ProbeResult) -> str:
    known = find_micro_batch(least)
    needs = f"micro-batches of {f'accum.steps={least.accum.count}' if known is None else known} need"
    others = "; ".join(
        f"{remedy.override} ({remedy.effect})" for remedy in remedies(least, least.device.known_replicas)
    )
    peak = trial.peak_bytes
    if peak is None:
        return f"{needs} more than is free. Less would take: {others}"
    would_do = math.ceil(peak / FILLED / 2**20)
    return f"{needs} at least {math.ceil(peak / 2**20)} MB; model.memory={would_do} works. Less would take: {others}"


def _digest(config: Config) -> str:
    """Return a hash of all that the peak of a run depends on."""
    values = to_mapping(config)
    places = {key: value_at(values, key) for key in keys_with(Role.PLACE, values)}  # of data of another size
    facts = [_peak_values(values) | places, cpu(), os.cpu_count(), kernel_settings(), versions()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read(file: Path, digest: str) -> dict[str, Any] | None:
    """Return the record for the same run on the same machine, or None."""
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = read_json(file, KeptActivations)
    except CheckpointError:
        return None  # damaged: probes look again
    return found if found["digest"] == digest else None
